"""Every way in which a configuration can be wrong, and the words in which it is refused."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from config_texts import MINIMAL, add, load, output, problems

from edgegs.kernels.variants import AXES, VARIANTS
from edgegs.sinks import create_sink, sink_options


def cam(text: str) -> str:
    return MINIMAL.replace("480}", "480, " + text + "}")


def path(text: str) -> str:
    return cam("path: {" + text + "}")


def width(text: str) -> str:
    return MINIMAL.replace("640", text)


def scene(text: str) -> str:
    return MINIMAL.replace("a.ply", text)


def named(text: str) -> str:
    return output("[{uri: 'null:', " + text + "}]")


# Every row is a text with exactly one problem, its line and key, and words of its message (between "; ").
UNKNOWN = [
    (add("weather: {target_fps: 25}"), "4: weather", "unknown key; known here: scene, camera"),
    (add("render: {bakend: host}"), "4: render.bakend", "unknown key (got host); did you mean backend?"),
    (add("telemetry: {interval: 1}"), "4: telemetry.interval", "did you mean interval_s?"),
    (add("render: {fps: 5}"), "4: render.fps", "did you mean target_fps?"),
    (add("render: {target-fps: 5}"), "4: render.target-fps", "did you mean target_fps?"),
    (add("width: 3"), "4: width", "did you mean camera.width?"),
    (add("Render: {}"), "4: Render", "did you mean render?"),
    (add("telemetry:\n  log:\n    max_bm: 3"), "6: telemetry.log.max_bm", "did you mean max_mb?"),
    (add("on: 5"), "4: on", "unknown key"),
    (add("5: 5"), "4: 5", "unknown key"),
    (named("requird: true"), "3: outputs.0.requird", "did you mean required?"),
    (add("render: {}\nrender:\n  threads: 2"), "5: render", "duplicate key, first given in line 4"),
    (add("render:\n  threads: 1\n  threads: 2"), "6: render.threads", "in line 5 (got 2); remove one"),
    (path("kind: orbit, hight: 3"), "2: camera.path.hight", "did you mean height?"),
    (path("kind: cameras_json, path: a, radius: 3"), "2: camera.path.radius", "path.radius (of kind orbit)?"),
]
MISSING = [
    (MINIMAL.replace("scene: {path: a.ply}", ""), "2: scene", "missing; add scene: {path: SCENE.ply}"),
    (MINIMAL.replace("path: a.ply", ""), "1: scene.path", "required key is missing (got nothing)"),
    (MINIMAL.replace("width: 640, ", ""), "2: camera.width", "required key is missing"),
    (MINIMAL[: MINIMAL.index("outputs")], "1: outputs", 'missing; add outputs: ["mjpeg://'),
    (output("[{required: true}]"), "3: outputs.0.uri", "required key is missing"),
    (path("period_s: 3"), "2: camera.path.kind", "missing (got nothing); add kind: with one of orbit"),
    (path("kind: cameras_json"), "2: camera.path.path", "required key is missing"),
    (add("telemetry:"), "4: telemetry", "has no value (got nothing); indent its keys below it"),
    (add("render:\n  threads:"), "5: render.threads", "has no value (got nothing); give it a value"),
    (add("render: {threads: null}"), "4: render.threads", "has no value (got null)"),
]
TYPES = [
    (width('"640"'), "2: camera.width", 'must be a whole number (got "640"); write 640, without quotes'),
    (width("wide"), "2: camera.width", "must be a whole number (got wide)"),
    (width("640.0"), "2: camera.width", "must be a whole number (got 640.0); write 640"),
    (width("640.5"), "2: camera.width", "write a number without a fraction"),
    (width("yes"), "2: camera.width", "YAML reads the bare word yes as true; write a number"),
    (width("0800"), "2: camera.width", "must be a whole number (got 0800); write 800"),
    (width("0640"), "2: camera.width", "YAML would read this as the number 416 (got 0640)"),
    (add("render: {target_fps: true}"), "4: render.target_fps", "must be a number (got true)"),
    (scene("2024"), "1: scene.path", 'must be text (got 2024); YAML reads 2024 as a number; "2024"'),
    (scene("[a, 1]"), "1: scene.path", "must be text (got [a, 1])"),
    (scene("{a: 1}"), "1: scene.path", "must be text (got a mapping with a)"),
    (named("name: 1e3"), "3: outputs.0.name", 'put it in quotes: "1e3"'),
    (named("name: no"), "3: outputs.0.name", 'reads the bare word no as false; put it in quotes: "no"'),
    (named("required: 'yes'"), "3: outputs.0.required", 'must be true or false (got "yes")'),
    (named("required: 1"), "3: outputs.0.required", "must be true or false (got 1)"),
    (add("render: fast"), "4: render", "must be a mapping (got fast)"),
    (add("render: [1]"), "4: render", "must be a mapping (got [1])"),
    (output("'null:'"), "3: outputs", 'must be a list (got "null:"); write a list: outputs: ["'),
    (path("kind: orbit, center: [0, x, 0]"), "2: camera.path.center.1", "must be a number (got x)"),
    (cam("path: orbit"), "2: camera.path", "must be a mapping (got orbit); write path: {kind: orbit}"),
    (add("telemetry: {interval_s: 22:30}"), "4: telemetry.interval_s", "the number 1350 (got 22:30)"),
    (named("name: 22:30"), "3: outputs.0.name", "the number 1350 (got 22:30); put it in quotes"),
    (add("render: {threads: -1:30}"), "4: render.threads", "the number -90 (got -1:30)"),
    (add("render: {threads: 0x_}"), "4: render.threads", "looks like a number and is none (got 0x_)"),
    (
        add("render: {target_fps: .nan}"),
        "4: render.target_fps",
        "infinity and NaN are not allowed (got .nan)",
    ),
    (add("render: {target_fps: -.INF}"), "4: render.target_fps", "infinity and NaN are not allowed"),
    (add("render: {target_fps: 1e999}"), "4: render.target_fps", "the number is too large (got 1e999)"),
    (
        add("render: {threads: " + "9" * 5000 + "}"),
        "4: render.threads",
        "more than 40 characters (got text of 5000 characters)",
    ),
    (add("render: {threads: 1" + ":1" * 5000 + "}"), "4: render.threads", "looks like a number and is none"),
]
LIMITS = [
    (width("8"), "2: camera.width", "must be at least 16 (got 8)"),
    (width("8193"), "2: camera.width", "must be at most 8192 (got 8193)"),
    (cam("fov_y_deg: 0.5"), "2: camera.fov_y_deg", "must be at least 1 (got 0.5)"),
    (cam("fov_y_deg: 171"), "2: camera.fov_y_deg", "must be at most 170 (got 171)"),
    (cam("near: 2, far: 1"), "2: camera.far", "must be more than near, 2 (got 1)"),
    (cam("near: 0"), "2: camera.near", "must be at least 1e-06 (got 0)"),
    (scene("a.ply, max_gaussians: 0"), "1: scene.max_gaussians", "must be at least 1"),
    (add("render: {target_fps: 1001}"), "4: render.target_fps", "must be at most 1000"),
    (add("render: {threads: -1}"), "4: render.threads", "must be at least 0 (got -1)"),
    (add("render: {variant: a b}"), "4: render.variant", "must be 1 to 64 letters"),
    (add("render: {variant: +tight}"), "4: render.variant", "write auto, or one of baseline, exact,"),
    (add("render:\n  background: [0, 255, 0]"), "5: render.background.1", "at most 1 (got 255); colours are"),
    (add("render: {background: [0, 0]}"), "4: render.background", "must be three numbers (got [0, 0])"),
    (add("render: {background: black}"), "4: render.background", "must be a list (got black)"),
    (add("render: {backend: cda}"), "4: render.backend", "one of auto, cuda, host, reference; mean cuda?"),
    (
        add("telemetry: {source: off}"),
        "4: telemetry.source",
        "must be one of auto, jtop, sysfs, tegrastats, nvml, none (got off)",
    ),
    (add("telemetry:\n  log:\n    max_mb: 8"), "5: telemetry.log.rotate_mb", "must be at most max_mb, 8"),
    (named("fps: 0"), "3: outputs.0.fps", "must be more than 0 (got 0)"),
    (output("[]"), "3: outputs", "must have at least 1 item"),
    (output(str([f"file://{i}.mp4" for i in range(17)])), "3: outputs", "must have at most 16 items"),
    (
        path("kind: orbitt"),
        "2: camera.path.kind",
        "one of orbit, fixed, keyframes, cameras_json; mean orbit?",
    ),
    (path("kind: orbit, period_s: 0"), "2: camera.path.period_s", "must be at least 0.1"),
    (path("kind: orbit, radius: 0"), "2: camera.path.radius", "must be more than 0"),
    (path("kind: orbit, up: [0, 0, 0]"), "2: camera.path.up", "must not be zero (got [0, 0, 0])"),
    (path("kind: fixed, eye: [1, 2, 3], target: [1, 2, 3]"), "2: camera.path.target", "must differ from eye"),
    (scene('""'), "1: scene.path", 'an empty path (got "")'),
    (scene("~/a.ply"), "1: scene.path", "~ is not expanded (got ~/a.ply)"),
    (scene("$HOME/a.ply"), "1: scene.path", "variables ($…) are not expanded"),
    (scene('"a\\0b"'), "1: scene.path", "control character"),
    (scene('"\\uD800"'), "1: scene.path", "half a character"),
    (add('"\\uD800": 1'), "4: \\ud800", "half a character"),
]
REFUSED = [
    (add("render: {threads: &t 1}"), "4: render.threads", "anchors are not allowed (got &t)"),
    (add("render: {threads: *t}"), "4: render.threads", "aliases are not allowed (got *t)"),
    (add("render: {threads: !!int '1'}"), "4: render.threads", "tags are not allowed"),
    (add("render: !!python/object/apply:os.system [ls]"), "4: render", "tags are not allowed"),
    (add("<<: {render: {}}"), "4", "merge keys (<<) are not allowed; write the keys out"),
    (add("? [a]\n: 1"), "4", "a key must be a single word"),
]


@pytest.mark.parametrize(("text", "where", "words"), UNKNOWN + MISSING + TYPES + LIMITS + REFUSED)
def test_one_problem(tmp_path: Path, text: str, where: str, words: str) -> None:
    found = problems(tmp_path, text)
    assert len(found) == 1, found
    assert found[0].startswith(f"c.yaml:{where}: "), found[0]
    for part in words.split("; "):
        assert part in found[0]


KEYS = """\
scene: {path: a.ply}
outputs: ["null:"]
camera:
  width: 640
  height: 480
  path:
    kind: keyframes
    keys:
      - {eye: [0, 0, -1], target: [0, 0, 0]%s}
      - {eye: [1, 0, -1], target: [0, 0, 0]%s}
      - {eye: [2, 0, -1], target: [0, 0, 0]%s}
    %s
"""


def at(*times_s: float) -> Any:
    return tuple(f", time_s: {time}" for time in times_s)


@pytest.mark.parametrize(
    ("keys", "more", "where", "words"),
    [
        (("", ", time_s: 1", ""), "loop: true", "9: camera.path.keys.0", "time_s is missing"),
        (at(1, 2, 3), "loop: true", "9: camera.path.keys.0.time_s", "must be 0 (got 1)"),
        (
            at(0, 2, 2),
            "loop: true",
            "11: camera.path.keys.2.time_s",
            "must be more than the 2 of the key before",
        ),
        (
            at(0, 1, 2),
            "period_s: 2",
            "12: camera.path.period_s",
            "must be more than the last key's time_s, 2",
        ),
        (("", "", ", fov_y_deg: 0"), "loop: true", "11: camera.path.keys.2.fov_y_deg", "must be at least 1"),
        (("", "", ", fov: 3"), "loop: true", "11: camera.path.keys.2.fov", "did you mean fov_y_deg?"),
        (("", "", ""), "up: [0, 1]", "12: camera.path.up", "must be three numbers"),
    ],
)
def test_keyframes(tmp_path: Path, keys: Any, more: str, where: str, words: str) -> None:
    (found,) = problems(tmp_path, KEYS % (*keys, more))
    assert found.startswith(f"c.yaml:{where}: ")
    assert words in found


def test_keyframes_times_without_loop(tmp_path: Path) -> None:
    text = KEYS % (*at(0, 1, 2), "loop: false\n    period_s: 9")
    (found,) = problems(tmp_path, text)
    assert found.startswith("c.yaml:13: camera.path.period_s: period_s has no meaning")


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        (b"", "1", "the file is empty"),
        (b"# only a comment\n", "1", "the file is empty"),
        (b"- a\n", "1", "must be a mapping of keys (got [a])"),
        (b"hello\n", "1", "must be a mapping of keys (got hello)"),
        (MINIMAL.encode() + b"---\nrender: {}\n", "4: column 1", "more than one document"),
        (MINIMAL.encode() + b"...\nrender: {}\n", "5: column 1", "text after the end (...) of the document"),
        (b"scene:\n\tpath: a\n", "2: column 1", "a tab cannot indent YAML; use spaces"),
        (b"scene:\n  path: a\n width: 3\n", "3: column 2", "does not fit the lines above it"),
        (b"scene: path: a\n", "1: column 12", "unexpected ':'"),
        (b"scene\ncamera: 1\n", "2: column 7", "unexpected ':'"),
        (b"a: 1\nscene\n", "3: column 1", "no ':' after its key"),
        (b"x: [1, 2\ny: 3\n", "2: column 2", "a '[' is not closed, opened in line 1"),
        (b"x: {a: 1\ny: 3\n", "2: column 2", "a '{' is not closed, opened in line 1"),
        (b'x: "abc\ny: 3\n', "3: column 1", "the text ends inside quotes, opened in line 1"),
        (b"x: @a\n", "1: column 4", "a value cannot start with '@'; put the text in quotes"),
        (b"x: - a\n", "1: column 4", "a '- ' list cannot start here"),
        (b"%FOO\n", "2: column 1", "a line with % before it"),
        (b'x: "\\q"\n', "1: column 6", "unknown escape sequence"),
        (b'x: "\\UFFFFFFFF"\n', "1: column 7", "an escape sequence that is no character"),
        (b"x: 1\ny: \x07\n", "2: column 4", "the character U+0007 is not allowed"),
        (b"x: 1\ny: \xff\n", "2", "byte 0xff is not UTF-8; save the file as UTF-8"),
        ("x: 1\n".encode("utf-16"), "1", "the file is in UTF-16; save it as UTF-8"),
        (b"x: " + b"[" * 33 + b"]" * 33, "1", "more than 32 deep"),
        (b"[" * 400_000, "1", "more than 32 deep"),
        (b"a: [" + b"1," * 20_000 + b"]", "1", "more than 20000 keys and values"),
        (b"#" * (1 << 20) + b"\n", "1", "the file is larger than 1 MiB"),
        (b"&a {b: 1}\n", "1", "anchors are not allowed"),
    ],
)  # fmt: skip
def test_unreadable_text(tmp_path: Path, text: bytes, where: str, words: str) -> None:
    (found,) = problems(tmp_path, text)
    assert found.startswith(f"c.yaml:{where}: ")
    assert words in found


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("wid", "no variant 'wid'; did you mean 'wide'?"),
        ("fp32-bins-tight-fast", "no variant 'fp32-bins-tight-fast'"),
        ("packed-bins-tight-exact-patch8", "key bins goes with tight, fast and a patch raster"),
    ],
)
def test_a_variant_that_there_is_not_stands_at_its_line(tmp_path: Path, name: str, words: str) -> None:
    text = add(f"render:\n  threads: 2\n  variant: {name}\n  target_fps: no\n")
    found, other = problems(tmp_path, text)
    assert found.startswith("c.yaml:6: render.variant: ")
    assert other.startswith("c.yaml:7: render.target_fps: ")
    assert words in found
    assert found.count("render.variant") == 1
    assert found.endswith(f"(got {name}); or write auto")
    if words.startswith("no variant"):
        assert all(known in found for known in [*VARIANTS, *(choice for axis in AXES.values() for choice in axis)])
    assert problems(tmp_path, MINIMAL, [f"render.variant={name}"])[0].startswith("--set render.variant: ")


@pytest.mark.parametrize("name", ["auto", *VARIANTS, "packed-split-tight-fast-dual", "fp32-ref64-radius-exact-block"])
def test_good_variant(tmp_path: Path, name: str) -> None:
    """What a backend cannot draw is told where it and the scene are known, but for tensor cores and the host."""
    for backend in ("auto", "cuda", "host", "reference"):
        if backend == "host" and name.startswith("tensor"):
            continue
        render = load(tmp_path, add(f"render: {{backend: {backend}, variant: {name}}}")).render
        assert render.variant == name


def test_a_configuration_loads_no_renderer() -> None:
    script = (
        "import edgegs.config, sys\n"
        "heavy = 'edgegs.backends edgegs.pack edgegs.renderer edgegs.room edgegs.kernels.headers scipy cv2'.split()\n"
        "assert not set(heavy) & set(sys.modules), set(heavy) & set(sys.modules)"
    )
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run(
        [sys.executable, "-c", script], env=dict(os.environ, PYTHONPATH=str(root)), stderr=subprocess.PIPE, timeout=60
    )
    assert done.returncode == 0, done.stderr.decode()


def test_equal_anchors_are_two_problems(tmp_path: Path) -> None:
    found = problems(tmp_path, add("render:\n  threads: &a 1\n  target_fps: &a 2"))
    assert [line.split(" (")[0] for line in found] == [
        "c.yaml:5: render.threads: anchors are not allowed",
        "c.yaml:6: render.target_fps: anchors are not allowed",
    ]


def test_alias_bomb_expands_to_nothing(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x]"] + [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 40)]
    found = problems(tmp_path, "\n".join(lines))
    assert any("anchors are not allowed" in line for line in found)


def test_deepest_allowed_nesting_is_read(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, add("x: " + "[" * 31 + "]" * 31))
    assert "x: unknown key" in found


def test_all_problems_are_reported_in_order(tmp_path: Path) -> None:
    text = """\
    scene: {pth: a.ply}
    camera: {width: 8, height: no}
    outputs: ["rtsp://u:p@h/x", "mjpeg://0.0.0.0:80"]
    render: {threads: &a 1}
    render: {threads: 2}
    """
    found = problems(tmp_path, textwrap.dedent(text), ["camera.far=x"], {"EDGEGS__HTTP__X": "1"})
    starts = [re.match(r"(?:c.yaml:\d|environment variable|--set)", line) for line in found]
    assert [match.group() if match else line for match, line in zip(starts, found)] == [
        "c.yaml:1", "c.yaml:1", "c.yaml:2", "c.yaml:2", "c.yaml:3", "c.yaml:4", "c.yaml:5",
        "environment variable", "--set",
    ]  # fmt: skip
    # The rule about tokens needs http, which is wrong itself here.
    assert "http.token_file" not in "\n".join(found)


def test_rules_across_sections_hold_whatever_else_is_wrong(tmp_path: Path) -> None:
    found = problems(tmp_path, 'outputs: ["x", "mjpeg://0.0.0.0:80", "null:", "null:"]\n')
    assert [line.split(" (")[0] for line in found if ": outputs" in line] == [
        "c.yaml:1: outputs.0: not a URI",
        "c.yaml:1: outputs.1: an address that other machines can reach needs http.token_file",
        "c.yaml:1: outputs.3: the same as outputs.2",
    ]
    assert len(found) == 5


@pytest.mark.parametrize("text", ["1:" * 200_000, "a:b" * 130_000, "@a:" * 130_000, "a:/" * 130_000 + "@"])
def test_huge_texts_are_masked_in_linear_time(tmp_path: Path, text: str) -> None:
    """Quadratic masking would take an hour here, and the message would be a megabyte long."""
    found = problems(tmp_path, width(f"'{text}'") + f"? '{text}'\n: 1\n")
    assert f"must be a whole number (got text of {len(text)} characters)" in found[0]
    assert "unknown key" in found[1]
    assert all(len(line) < 500 for line in found)


def test_report_has_an_end(tmp_path: Path) -> None:
    found = problems(tmp_path, add("".join(f"k{i}: 1\n" for i in range(500))))
    assert len(found) == 101
    assert found[-1] == "… and 400 more problems"


def test_messages_stay_on_their_line(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, add('"a\\n\\e[31mb": "x\\ny"'))
    assert "\x1b" not in found
    assert "a\\n\\x1b[31mb" in found


# ---- outputs


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("", "an empty output"),
        ("out.mp4", "not a URI (got \"out.mp4\"); write file://out.mp4"),
        ("null", "not a URI; write \"null:\""),
        ("127.0.0.1:8080", "write mjpeg://127.0.0.1:8080"),
        ("null:x", "null: takes nothing after its colon"),
        ("display://first", "not a monitor; write display://0"),
        ("v4l2:///data/video10", "not a device; write v4l2:///dev/video10"),
        ("/dev/video10", "not a URI (got \"/dev/video10\"); write v4l2:///dev/video10"),
        ("rtp://10.0.0.1", "no port; write rtp://10.0.0.1:5000"),
        ("rtsp://user:pw@:8554/x", "takes no user and password (got \"rtsp://***@:8554/x\")"),
        ("rtsp://@:8554", "no name after the port"),
        ("http://127.0.0.1:80", "unknown scheme http:; did you mean mjpeg:?"),
        ("flie:///a.mp4", "did you mean file:?"),
        ("file:a.mp4", "needs two slashes; write file://a.mp4"),
        ("file://localhost/a.mp4", "takes no host; write file:///a.mp4"),
        ("file://", "an empty path"),
        ("file:///a/", "a file name without a type"),
        ("file:///a.webm", "a file of the type .webm; videos end in .mp4, .avi, .mkv"),
        ("file:///f_%06d.mp4", "a numbered video"),
        ("file:///f_%s.png", "not a frame number; write one %d or %06d"),
        ("file:///f_%d_%d.png", "not a frame number"),
        ("file:///f_%99999d.png", "not a frame number"),
        ("file:///%d/f.png", "a % in the name of a folder"),
        ("file://~/f.png", "~ is not expanded"),
        ("mjpeg:127.0.0.1:80", "needs two slashes"),
        ("mjpeg://127.0.0.1", "no port; write mjpeg://127.0.0.1:8080"),
        ("mjpeg://:8080", "no host"),
        ("mjpeg://127.0.0.1:65536", "there is no port 65536"),
        ("mjpeg://127.0.0.1:" + "9" * 5000, "there is no port"),
        ("mjpeg://127.0.0.1:80/x", "takes no path; write mjpeg://127.0.0.1:80"),
        ("mjpeg://u:p@127.0.0.1:80", "takes no user and password; name a file"),
        ("mjpeg://127.0.0.300:80", "is no IP address"),
        ("mjpeg://a b:80", "not an address"),
    ],
)  # fmt: skip
def test_bad_output(tmp_path: Path, uri: str, words: str) -> None:
    (found,) = problems(tmp_path, output(f"\n  - '{uri}'"))
    assert found.startswith("c.yaml:4: outputs.0: ")
    for part in words.split("; "):
        assert part in found


@pytest.mark.parametrize(
    ("uri", "kind", "normal"),
    [
        ("null:", "null", "null:"),
        ("file:///v/o.mp4", "video", "file:///v/o.mp4"),
        ("FILE:///v/o.MKV", "video", "file:///v/o.MKV"),
        ("file://o.avi", "video", "file://{base}/o.avi"),
        ("file://../x/./o.mp4", "video", "file://{parent}/x/o.mp4"),
        ("file:///v/frame_%06d.png", "frames", "file:///v/frame_%06d.png"),
        ("file://%d.jpeg", "frames", "file://{base}/%d.jpeg"),
        ("file:///v/last.jpg", "image", "file:///v/last.jpg"),
        ("mjpeg://127.0.0.1:8080", "mjpeg", "mjpeg://127.0.0.1:8080"),
        ("mjpeg://localhost:0/", "mjpeg", "mjpeg://localhost:0"),
        ("mjpeg://[::1]:8080", "mjpeg", "mjpeg://[::1]:8080"),
        ("display://1", "display", "display://1"),
        ("v4l2:///dev/video10", "v4l2", "v4l2:///dev/video10"),
        ("v4l2://label/edgegs", "v4l2", "v4l2://label/edgegs"),
        ("rtp://10.0.0.1:5000", "rtp", "rtp://10.0.0.1:5000"),
        ("rtsp://@:8554/live", "rtsp-server", "rtsp://@:8554/live"),
        ("rtsp://h:8554/live", "rtsp-client", "rtsp://h:8554/live"),
    ],
)
def test_good_output(tmp_path: Path, uri: str, kind: str, normal: str) -> None:
    (made,) = load(tmp_path, output(f"['{uri}']")).outputs
    assert made.uri.text == normal.format(base=tmp_path, parent=tmp_path.parent)
    assert made.uri.kind == kind
    assert made.label == str(made.uri) == made.uri.text
    if kind in ("video", "frames", "image"):
        assert "file://" + made.uri.path == made.uri.text
    if kind == "mjpeg":
        assert not made.uri.needs_token
        assert made.uri.host in ("127.0.0.1", "localhost", "::1")


def test_outputs_beside_a_configuration_in_an_odd_folder(tmp_path: Path) -> None:
    folder = tmp_path / "$x 100%"
    folder.mkdir()
    for name in ("o.mkv", "o.png"):
        (made,) = load(folder, output(f"['file://{name}']")).outputs
        assert create_sink(made.uri).uri == f"file://{folder}/{name}"
    (found,) = problems(folder, output("['file://%d.png']"))
    assert "the configuration's folder has a % in its name" in found
    assert "write frames to another folder" in found


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "[::]", "nano.local"])
def test_reachable_address_needs_a_token(tmp_path: Path, host: str) -> None:
    text = output(f'["null:", "mjpeg://{host}:8080"]')
    (found,) = problems(tmp_path, text)
    assert found.startswith("c.yaml:3: outputs.1: ")
    assert "needs http.token_file" in found
    config = load(tmp_path, text + "http: {token_file: token}\n")
    assert config.http.token_file == str(tmp_path / "token")


def test_null_without_quotes(tmp_path: Path) -> None:
    for text in ("[null:]", "\n  - null:"):
        (found,) = problems(tmp_path, output(text))
        assert "outputs.0: YAML reads null: as a mapping" in found
        assert 'put it in quotes: "null:"' in found


def test_outputs_differ(tmp_path: Path) -> None:
    same = '[{uri: "null:", name: a}, "file://a.mp4", {uri: "file://./a.mp4", name: b}, {uri: "null:", name: a}]'
    found = problems(tmp_path, output(same))
    assert [line.split(" (")[0] for line in found] == [
        "c.yaml:3: outputs.2: the same as outputs.1",
        "c.yaml:3: outputs.3: the same as outputs.0",
    ]
    assert len(load(tmp_path, output('["null:", {uri: "null:", name: b}]')).outputs) == 2


@pytest.mark.parametrize(
    ("first", "second", "clash"),
    [
        ("rtsp://@127.0.0.1:8554/a", "rtsp://@127.0.0.1:8554/b", True),
        ("rtsp://@:8554/a", "mjpeg://127.0.0.1:8554", True),
        ("rtsp://@127.0.0.2:8554/a", "mjpeg://127.0.0.1:8554", False),
        ("rtsp://h:8554/a", "mjpeg://127.0.0.1:8554", False),
        ("mjpeg://127.0.0.1:0", "mjpeg://127.0.0.1:0", False),
    ],
)
def test_two_outputs_cannot_listen_at_one_port(tmp_path: Path, first: str, second: str, clash: bool) -> None:
    text = output(f"[{{uri: '{first}', name: a}}, {{uri: '{second}', name: b}}]")
    if not clash:
        load(tmp_path, text)
        return
    (found,) = problems(tmp_path, text)
    assert "outputs.1: listens at port 8554, as outputs.0 does" in found
    assert "give it another port" in found


def test_advice_for_doubled_outputs_works(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, output('[{uri: "display://0", name: x}, {uri: "display://0", name: y}]'))
    assert found.endswith("; remove it")
    (found,) = problems(tmp_path, output('[{uri: "null:", name: x}, {uri: "null:", name: x}]'))
    assert found.endswith("; give it a name of its own")


def test_quality_only_of_jpeg(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, output('[{uri: "file://a.mp4", quality: 50}]'))
    assert "outputs.0.quality: only mjpeg: and .jpg outputs have a quality (got 50)" in found
    assert load(tmp_path, output('[{uri: "file://a.jpg", quality: 50}]')).outputs[0].quality == 50


@pytest.mark.parametrize(
    ("uri", "option", "words"),
    [
        ("null:", "rotation_deg: 90", "rotation_deg: only display: outputs have rotation_deg (got 90); remove it"),
        ("display://0", "rotation_deg: 45", "rotation_deg: must be one of 0, 90, 180, 270"),
        ("display://0", "x_display: seven", 'x_display: not an X display (got seven); write ":0"'),
        ("display://0", "overlay: 1", "overlay: must be true or false"),
        ("file://a.mkv", "overlay: true", "overlay: only display: outputs have overlay"),
        ("v4l2:///dev/video1", "pixel_format: bgr", "pixel_format: must be one of yuyv, i420"),
        ("file://a.avi", "encoder: x264enc", "encoder: an .avi cannot hold H.264"),
        ("rtp://h:1", "min_free_mb: 10", "min_free_mb: only file: outputs have min_free_mb"),
        ("rtp://h:1", "encoder: opencv", "encoder: OpenCV's own codecs write files only"),
        ("rtp://h:1", "encoder: x265enc", "encoder: must be one of auto, nvv4l2h264enc, omxh264enc, x264enc, opencv"),
        ("rtp://h:1", "bitrate_kbps: 3", "bitrate_kbps: must be at least 50"),
        ("file://a.png", "bitrate_kbps: 3000", "bitrate_kbps: only videos, rtp: and rtsp: outputs have bitrate_kbps"),
        ("rtp://h:1", "keyframe_interval_s: 0", "keyframe_interval_s: must be at least 0.1"),
        ("mjpeg://127.0.0.1:1", "max_clients: 65", "max_clients: must be at most 64"),
        ("mjpeg://127.0.0.1:1", "hosts: [a b]", "hosts.0: not the name or the address of a machine"),
        ("mjpeg://127.0.0.1:1", "hosts: lobby", "hosts: must be a list"),
    ],
)
def test_bad_option(tmp_path: Path, uri: str, option: str, words: str) -> None:
    (found,) = problems(tmp_path, output(f"[{{uri: '{uri}', {option}}}]"))
    assert "outputs.0." + words in found


@pytest.mark.parametrize(
    ("uri", "options"),
    [
        ("display://0", {"rotation_deg": 270, "overlay": True, "x_display": ":0.0"}),
        ("display://0", {"rotation_deg": 0, "overlay": False}),
        ("v4l2://label/edgegs", {"pixel_format": "i420"}),
        ("rtsp://@:8554/live", {"encoder": "x264enc", "bitrate_kbps": 2000, "keyframe_interval_s": 0.5}),
        ("file:///a.mp4", {"encoder": "opencv"}),
        ("mjpeg://127.0.0.1:1", {"quality": 70, "max_clients": 2, "hosts": ("lobby.example.org", "10.0.0.9")}),
    ],
)
def test_options_reach_the_sink(tmp_path: Path, uri: str, options: Any) -> None:
    text = json.dumps([{"uri": uri, **options}])
    (made,) = load(tmp_path, output(text)).outputs
    assert made.options() == options
    assert set(options) <= set(sink_options(made.uri))
    create_sink(made.uri, **made.options())


# ---- camera


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("{kind: upd}", "kind: must be one of orbit, fixed, keyframes, cameras_json, udp, mqtt, interactive"),
        ("{kind: udp, port: 0}", "port: must be at least 1"),
        ("{kind: udp, host: 999.1.1.1}", "host: is no IP address"),
        ("{kind: udp, host: 'a b'}", "host: not the name or the address of a machine"),
        ("{kind: udp, home: {eye: [0, 0, 0], target: [0, 0, 0]}}", "home.target: target must differ from eye"),
        ("{kind: udp, home: {eye: [0, 0, 0]}}", "home.target: required key is missing"),
        ("{kind: mqtt, password_file: p}", "password_file: a password without a user"),
        ("{kind: mqtt, topic: ''}", "topic: "),
        ("{kind: interactive}", "kind: nobody can move this camera: there is no display: output"),
    ],
)
def test_bad_pose_source(tmp_path: Path, path: str, words: str) -> None:
    (found,) = problems(tmp_path, MINIMAL.replace("480}", f"480, path: {path}}}"))
    assert "camera.path." + words in found


def test_virtual_cameras_need_even_sizes(tmp_path: Path) -> None:
    text = output('["v4l2:///dev/video10"]').replace("640", "641").replace("480", "481")
    found = problems(tmp_path, text)
    assert [line.split(" (")[0] for line in found] == [
        "c.yaml:2: camera.width: must be even for a v4l2: output",
        "c.yaml:2: camera.height: must be even for a v4l2: output",
    ]
    load(tmp_path, text.replace("v4l2:///dev/video10", "display://0"))


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("video0", "not a URI"),
        ("/dev/video0", "not a URI (got /dev/video0); write v4l2:///dev/video0"),
        ("rtsp://h/x", "unknown scheme rtsp:"),
        ("csi://first", "not the number of a sensor; write csi://0"),
        ("file://a.gif", "a file of the type .gif"),
    ],
)
def test_bad_background(tmp_path: Path, uri: str, words: str) -> None:
    for written, key in ((uri, "camera.background"), (f"{{uri: {uri}, fit: cover}}", "camera.background.uri")):
        (found,) = problems(tmp_path, MINIMAL.replace("480}", f"480, background: {written}}}"))
        assert key + ": " in found
        for part in words.split("; "):
            assert part in found


def test_good_background(tmp_path: Path) -> None:
    made = load(tmp_path, MINIMAL.replace("480}", "480, background: file://loop.mp4}")).camera.background
    assert made is not None
    assert (made.uri.path, made.uri.kind, made.fit, made.fps) == (str(tmp_path / "loop.mp4"), "video", "cover", 30.0)


def test_a_variant_for_tensor_cores_is_not_the_processors(tmp_path):
    text = add("render:\n  backend: host\n  variant: tensor\n")
    (found,) = problems(tmp_path, text)
    assert "render.variant: needs tensor cores, which only GPUs have" in found
    assert load(tmp_path, text.replace("backend: host", "backend: auto")).render.variant == "tensor"
