"""Every key of the configuration: its type, default and limits.

The models are frozen and strict. Units stand in the keys; lengths without one are in the scene's own units.
Paths are absolute after ``load_config``: relative ones are resolved against the configuration file's folder,
wherever they were written (file, environment or ``--set``).
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Dict, List, Optional, Sequence, Tuple

import yaml
from pydantic import BeforeValidator, Field, model_validator
from typing_extensions import Annotated, Literal

from edgegs.camera import FAR, NEAR
from edgegs.config.camera_paths import CameraPath
from edgegs.config.fields import (
    Colour,
    Fov,
    Fps,
    Host,
    Name,
    Path,
    Section,
    Side,
    Source,
    Uri,
    VariantName,
    XDisplay,
    defaults,
    frozen_list,
    problem,
)
from edgegs.config.masking import mask_text, masked
from edgegs.config.tree import FLOAT
from edgegs.kernels.variants import variant
from edgegs.sinks.uri import OutputUri


class Scene(Section):
    path: Path
    max_gaussians: Optional[Annotated[int, Field(ge=1, le=2**31 - 1)]] = None
    frame: Optional[Literal["rdf", "rub"]] = None


class Background(Section):
    """A live picture behind the splats; a plain string in the file is its ``uri``."""

    uri: Source
    fit: Literal["cover", "contain", "stretch"] = "cover"
    fps: Annotated[float, Field(ge=1, le=240)] = 30.0

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {"uri": value} if isinstance(value, str) else value


class Camera(Section):
    width: Side
    height: Side
    fov_y_deg: Fov = 60.0
    near: Annotated[float, Field(ge=1e-6, le=1e9)] = NEAR
    far: Annotated[float, Field(gt=0, le=1e12)] = FAR
    path: Optional[CameraPath] = None
    background: Optional[Background] = None

    @model_validator(mode="after")
    def _fits(self) -> Camera:
        if self.far <= self.near:
            raise problem(f"must be more than near, {self.near:g}", "", "far")
        return self


class Render(Section):
    backend: Literal["auto", "cuda", "host", "reference"] = "auto"
    variant: VariantName = "auto"
    max_error_db: Optional[Annotated[float, Field(ge=30, le=100)]] = None
    background: Colour = (0.0, 0.0, 0.0)
    target_fps: Fps = 30.0
    threads: Annotated[int, Field(ge=0, le=1024)] = 0

    @model_validator(mode="after")
    def _is_drawn(self) -> Render:
        if self.backend == "host" and self.variant != "auto" and variant(self.variant).needs_tensor_cores:
            raise problem("needs tensor cores, which only GPUs have", "write auto", "variant")
        return self


#: Kinds of outputs (``OutputUri.kind``) that have an option; those not listed belong to all.
_VIDEO = ("video", "rtp", "rtsp-server", "rtsp-client")
_OPTION_KINDS: Dict[str, Tuple[str, Tuple[str, ...]]] = {
    "min_free_mb": ("file: outputs", ("video", "frames", "image")),
    "quality": ("mjpeg: and .jpg outputs", ("mjpeg", "image", "frames")),
    "max_clients": ("mjpeg: outputs", ("mjpeg",)),
    "hosts": ("mjpeg: outputs", ("mjpeg",)),
    "rotation_deg": ("display: outputs", ("display",)),
    "overlay": ("display: outputs", ("display",)),
    "x_display": ("display: outputs", ("display",)),
    "keys": ("display: outputs", ("display",)),
    "pixel_format": ("v4l2: outputs", ("v4l2",)),
    "encoder": ("videos, rtp: and rtsp: outputs", _VIDEO),
    "bitrate_kbps": ("videos, rtp: and rtsp: outputs", _VIDEO),
    "keyframe_interval_s": ("videos, rtp: and rtsp: outputs", _VIDEO),
}


class Output(Section):
    """One output; a plain string in the file is its ``uri``.

    ``uri``: checked and taken apart; ``create_sink`` takes it as it is.
    ``fps``: most frames per second for this output; None for all. The keys after it are options of some kinds of
    outputs (``_OPTION_KINDS``); None for the output's own default, and always where it has no such option.
    """

    uri: Uri
    required: bool = False
    name: Optional[Name] = None
    fps: Optional[Annotated[float, Field(gt=0, le=1000)]] = None
    min_free_mb: Optional[Annotated[int, Field(ge=1, le=10**7)]] = None
    quality: Optional[Annotated[int, Field(ge=1, le=100)]] = None
    max_clients: Optional[Annotated[int, Field(ge=1, le=64)]] = None
    hosts: Optional[Annotated[Tuple[Host, ...], BeforeValidator(frozen_list), Field(max_length=64)]] = None
    rotation_deg: Optional[Literal[0, 90, 180, 270]] = None
    overlay: Optional[bool] = None
    x_display: Optional[XDisplay] = None
    keys: Optional[bool] = None
    pixel_format: Optional[Literal["yuyv", "i420"]] = None
    encoder: Optional[Literal["auto", "nvv4l2h264enc", "omxh264enc", "x264enc", "opencv"]] = None
    bitrate_kbps: Optional[Annotated[int, Field(ge=50, le=200_000)]] = None
    keyframe_interval_s: Optional[Annotated[float, Field(ge=0.1, le=60)]] = None

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"uri": value}
        if isinstance(value, dict) and set(value) == {"null"}:
            raise problem("YAML reads null: as a mapping", 'put it in quotes: "null:"')
        return value

    @model_validator(mode="after")
    def _has_its_options(self) -> Output:
        for key, (who, kinds) in _OPTION_KINDS.items():
            if getattr(self, key) is None:
                continue
            if self.uri.kind not in kinds or (key == "quality" and not self.uri.is_jpeg):
                words = {"quality": "have a quality"}.get(key, f"have {key}")
                raise problem(f"only {who} {words}", "remove it", key)
        if self.encoder not in (None, "auto", "opencv") and self.uri.path.lower().endswith(".avi"):
            raise problem("an .avi cannot hold H.264", "write auto, or name the file .mkv or .mp4", "encoder")
        if self.encoder == "opencv" and self.uri.kind != "video":
            raise problem("OpenCV's own codecs write files only", "write auto, or an H.264 encoder's name", "encoder")
        return self

    def options(self) -> Dict[str, Any]:
        """The options that are set, as ``create_sink`` takes them."""
        return {key: getattr(self, key) for key in _OPTION_KINDS if getattr(self, key) is not None}

    @property
    def label(self) -> str:
        """What logs and metrics call this output: its name, else its URI. Unique."""
        return mask_text(self.name or self.uri.text)


class Log(Section):
    dir: Optional[Path] = "runs"
    max_mb: Annotated[int, Field(ge=1, le=10**7)] = 256
    rotate_mb: Annotated[int, Field(ge=1, le=10**5)] = 16
    flush_s: Annotated[float, Field(ge=0, le=3600)] = 10.0
    min_free_mb: Annotated[int, Field(ge=0, le=10**7)] = 64

    @model_validator(mode="after")
    def _fits(self) -> Log:
        if self.rotate_mb > self.max_mb:
            raise problem(f"must be at most max_mb, {self.max_mb}", "", "rotate_mb")
        return self


class Telemetry(Section):
    source: Literal["auto", "jtop", "sysfs", "tegrastats", "nvml", "none"] = "auto"
    sysfs_root: Path = "/sys"
    interval_s: Annotated[float, Field(ge=0.1, le=3600)] = 1.0
    textfile: Optional[Path] = None
    log: Log = Field(default_factory=defaults)

    @model_validator(mode="after")
    def _is_textfile(self) -> Telemetry:
        from edgegs.telemetry.textfile import fault  # its package is more than a configuration needs

        wrong = None if self.textfile is None else fault(self.textfile)
        if wrong is not None:
            raise problem(wrong, "", "textfile")
        return self


class Governor(Section):
    """Limits to hold by giving up quality; all None: nothing is ever given up."""

    target_fps: Optional[Annotated[float, Field(ge=1, le=1000)]] = None
    max_power_w: Optional[Annotated[float, Field(gt=0, le=10000)]] = None
    max_temp_c: Optional[Annotated[float, Field(ge=20, le=120)]] = None


class Http(Section):
    token_file: Optional[Path] = None


Outputs = Annotated[Tuple[Output, ...], BeforeValidator(frozen_list), Field(min_length=1, max_length=16)]


class Config(Section):
    """The whole configuration."""

    scene: Scene
    camera: Camera
    outputs: Outputs
    render: Render = Field(default_factory=defaults)
    telemetry: Telemetry = Field(default_factory=defaults)
    governor: Governor = Field(default_factory=defaults)
    http: Http = Field(default_factory=defaults)

    def sha256(self) -> str:
        """Hex digest of what ``effective`` shows: the same however the file was laid out or overridden.

        Secrets are masked before hashing, so a digest in a log gives none away. To find out whether two
        configurations differ at all, compare them.
        """
        text = json.dumps(_shown(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode("utf-8")).hexdigest()


def check_outputs(outputs: Sequence[Optional[Output]], http: Optional[Http]) -> List[Tuple[str, str, str]]:
    """Rules across outputs and sections; None stands for what is wrong by itself.

    Returns:
        (dotted key, problem, suggestion) of each breach.
    """
    problems: List[Tuple[str, str, str]] = []
    seen: Dict[str, int] = {}
    listening: List[Tuple[int, OutputUri]] = []
    for i, output in enumerate(outputs):
        if output is None:
            continue
        uri = output.uri
        key = f"outputs.{i}"
        if uri.needs_token and http is not None and http.token_file is None:
            text = "an address that other machines can reach needs http.token_file"
            problems.append((key, text, f"set http.token_file, or use mjpeg://127.0.0.1:{uri.port}"))
        may_repeat = uri.kind == "null" or (uri.kind == "mjpeg" and uri.port == 0)
        names = {output.label} if may_repeat else {output.label, uri.text}
        same = [seen[name] for name in sorted(names) if name in seen]
        if same:
            alike = uri.text in seen and not may_repeat
            advice = "remove it" if alike else "give it a name of its own"
            problems.append((key, f"the same as outputs.{same[0]}", advice))
        elif uri.listens:
            taken = [j for j, other in listening if other.port == uri.port and _overlap(other.host, uri.host)]
            if taken:
                text = f"listens at port {uri.port}, as outputs.{taken[0]} does"
                problems.append((key, text, "give it another port"))
            listening.append((i, uri))
        seen.update((name, i) for name in names)
    return problems


def _overlap(host: str, other: str) -> bool:
    everywhere = ("", "0.0.0.0", "::")
    return host == other or host in everywhere or other in everywhere


def check_camera(camera: Optional[Camera], outputs: Sequence[Optional[Output]]) -> List[Tuple[str, str, str]]:
    """What the camera needs of the outputs; as ``check_outputs``."""
    if camera is None:
        return []
    problems: List[Tuple[str, str, str]] = []
    kinds = [None if output is None else output.uri.kind for output in outputs]
    if camera.path is not None and camera.path.kind == "interactive" and not {"display", None} & set(kinds):
        text = "nobody can move this camera: there is no display: output"
        problems.append(("camera.path.kind", text, "add display://0"))
    if "v4l2" in kinds:
        for key in ("width", "height"):
            if getattr(camera, key) % 2:
                text = "must be even for a v4l2: output"
                problems.append((f"camera.{key}", text, "its pixels share colours in pairs"))
    return problems


def check_governor(
    governor: Optional[Governor], render: Optional[Render], telemetry: Optional[Telemetry]
) -> List[Tuple[str, str, str]]:
    """What the governor needs of the frame rate and the sensors; as ``check_outputs``."""
    if governor is None:
        return []
    problems: List[Tuple[str, str, str]] = []
    if governor.target_fps is not None and render is not None and 0 < render.target_fps < governor.target_fps:
        text = f"the loop draws at most render.target_fps, {render.target_fps:g}"
        problems.append(("governor.target_fps", text, "lower it, or raise render.target_fps"))
    for key in ("max_power_w", "max_temp_c"):
        if getattr(governor, key) is None or telemetry is None:
            continue
        if telemetry.source == "none":
            problems.append((f"governor.{key}", "nothing is measured: telemetry.source is none", "write auto there"))
        elif telemetry.interval_s > 2:
            text = f"cannot be held with a reading every {telemetry.interval_s:g} s"
            problems.append((f"governor.{key}", text, "set telemetry.interval_s to 2 or less"))
    return problems


def _shown(config: Config) -> Any:
    return masked(config.model_dump(mode="json"))


class _Dumper(yaml.SafeDumper):
    """Quotes text that edgegs' own rules would read as a number (1e3), besides what YAML would."""


_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, list("-+.0123456789"))


def effective(config: Config) -> str:
    """The configuration with every default filled in, as YAML, secrets masked; loads to an equal one."""
    return yaml.dump(_shown(config), Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=100)
