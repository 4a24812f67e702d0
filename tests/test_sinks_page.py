"""The page in a real browser: its script runs under its own policy and shows the figures and the stream."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import threading

import pytest
from web_support import frame, serving

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
STATUS = {
    "fps": 27.44,
    "frame_ms": {"p50": 36.1, "p95": 41.7, "max": 58.2},
    "stages": {
        name: {"p50": ms, "p95": 1.2 * ms, "max": 2 * ms}
        for name, ms in {"project": 3.1, "duplicate": 1.4, "sort": 6.8, "ranges": 0.31, "rasterize": 19.7}.items()
    },
    "n_splats": 298431,
    "n_visible": 120733,
    "n_instances": 611207,
    "frames": 7,
    "temp_c": {"CPU-therm": 51.5},
    "power_w": {"POM_5V_IN": 6.82},
    "outputs": [
        {"uri": "null:", "state": "up", "frames_written": 7, "frames_dropped": 0, "last_error": None},
        {
            "uri": "display://0",
            "state": "retrying",
            "frames_written": 0,
            "frames_dropped": 7,
            "last_error": "no <b>display</b>",
        },
    ],
    "scene": "/scenes/<i>lobby</i>.ply",
    "backend": "host",
    "variant": "baseline",
    "width": 64,
    "height": 48,
    "uptime_s": 3725.0,
}


@contextlib.contextmanager
def frames_for(sink):
    """Moving pictures meanwhile: a headless Chromium's time stands still while an answer is outstanding."""
    done = threading.Event()

    def feed():
        index = 0
        while not done.wait(0.02):
            sink.write(frame(index))
            index += 1

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        yield sink
    finally:
        done.set()
        thread.join()


def browse(address, folder):
    """(document after some seconds of page time, console messages) of a headless Chromium."""
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    command += ["--user-data-dir=" + str(folder), "--enable-logging=stderr", "--virtual-time-budget=4000"]
    done = subprocess.run([*command, "--dump-dom", address], capture_output=True, timeout=60, check=True)
    log = done.stderr.decode("utf-8", "replace")
    return done.stdout.decode("utf-8"), [line for line in log.splitlines() if "CONSOLE" in line]


def shown(document, element):
    return re.search(r'id="' + element + r'"[^>]*>([^<]*)<', document).group(1)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: the page is not tested in a browser")
@pytest.mark.parametrize("token", [None, "a b&c"])
def test_page_shows_figures_and_stream(tmp_path, token):
    asked = threading.Event()

    def status():
        asked.set()
        return STATUS

    with serving() as start, frames_for(start(status=status, token=token)) as sink:
        query = "" if token is None else "?token=a%20b%26c"
        document, console = browse(f"http://127.0.0.1:{sink.port}/{query}", tmp_path)
        assert console == []  # no error, and nothing that the policy refused
        assert asked.is_set()
        assert sink.hub.encoded > 3  # the stream was watched
    assert shown(document, "fps") == "27.4"
    assert shown(document, "frame-ms") == "36.1"
    assert shown(document, "frame-tail") == "p95 41.7 · max 58.2"
    assert re.fullmatch(r"live|no new frame for \d s", shown(document, "link"))
    assert shown(document, "n_splats") == "298,431"
    assert shown(document, "scene") == "i&gt;.ply"  # text, never markup
    assert "no &lt;b&gt;display&lt;/b&gt;" in document
    assert re.findall(r'class="value">([0-9.]+)<', document) == [
        "3.10", "1.40", "6.80", "0.31", "19.7", "6.82", "51.5",
    ]  # fmt: skip
    assert "up 1 h 2 min" in document


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: the page is not tested in a browser")
def test_page_lives_with_an_empty_status(tmp_path):
    with serving() as start, frames_for(start(status=dict)) as sink:
        document, console = browse(f"http://127.0.0.1:{sink.port}/", tmp_path)
    assert console == []
    assert shown(document, "fps") == "–"
    assert shown(document, "link") == "waiting for the first frame"
    assert 'id="stages-section" hidden' in document
