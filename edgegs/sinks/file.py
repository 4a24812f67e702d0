"""``file://``: a video, numbered pictures, or one picture that always shows the latest frame.

    file:///data/out.mkv              video: .mkv, .avi or .mp4
    file:///data/frame_%06d.png       numbered pictures: .png or .jpg, one %d or %0Nd in the name
    file:///data/latest.jpg           one picture, replaced by each frame

Nothing is percent-decoded, "~" is not a home folder, and a path without a leading slash is relative to the
working directory. A missing folder is created only when the folder above it exists: a deeper one usually
means that a disk is not mounted, and the recording must not fill the system's disk instead; the runner
tries again until it is there.

A file's own name may not be a symbolic link: what is recorded would come to lie beside the link, on another disk than
the one that it leads to. Links to folders are followed.

What was recorded is never overwritten. An older video of the same name is renamed to the next free
``out.1.mkv``, ``out.2.mkv`` …, and comes back to its name when the new one ends without a frame; numbered
pictures go on after the highest number that is there. Below ``min_free_mb`` of free space writing stops
with an error and the video is finished properly: OpenCV itself does not notice a full disk.

Which encoder? An .mp4 or .mkv holds H.264, made by a GStreamer child (``h264.py``) with the first of nvv4l2h264enc,
omxh264enc and x264enc that this machine has; without any of them, and in an .avi, OpenCV's own codecs.

Which video format? A video plays as fast as the frames came: at the nominal rate, a late frame fills
the time before it with copies of itself, and frames beyond that rate are left out (see ``h264.Slots``). When the power
fails before ``close``, all formats stay readable up to the cut, or to the last whole second before it; not so an .mp4
by OpenCV, which holds its index (the "moov atom") at the end and is lost whole. The last row or column of an odd size
is dropped. Pictures appear under their name in one step (temporary file, then rename), so
that a reader never sees half of one; they are not fsynced, which would wear an SD card out.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from pathlib import Path
from typing import Any, Dict, Iterator, Optional, Tuple

import cv2
import numpy as np

from edgegs import files
from edgegs.errors import AccessError, ConfigError, DeviceError, EdgegsError, OutputError
from edgegs.frame import Frame
from edgegs.sinks import encoders
from edgegs.sinks.base import Sink, check_int
from edgegs.sinks.h264 import CALL_S, FileWriter, Settings, Slots
from edgegs.sinks.pictures import encode
from edgegs.sinks.uri import OutputUri, split_frame_number

_log = logging.getLogger("edgegs.sinks")

#: Each of ``uri.VIDEO_SUFFIXES`` -> codecs to try in turn. All are in OpenCV's wheels; MJPG is in every build.
_CODECS: Dict[str, Tuple[str, ...]] = {
    ".mp4": ("mp4v", "avc1"),
    ".mkv": ("mp4v", "MJPG"),
    ".avi": ("MJPG", "mp4v"),
}
_VIDEO_OPTIONS = ("codec", "encoder", "bitrate_kbps", "keyframe_interval_s")
#: A file that is smaller holds no picture, bytes: what the headers of .mp4 and .mkv take.
_HEADERS = 2048
#: How often the disk's free space is looked at, seconds.
_CHECK_S = 1.0


class FileSink(Sink):
    """Common part: folder, permissions and free space.

    Options:
        queue: frames that may wait while the disk is slow, 1..64; each takes width x height x 3 bytes.
        min_free_mb: MiB of the disk that stay free.
        quality: JPEG quality, 1..100; pictures only.
    Options of videos only:
        encoder: "auto"; "opencv"; or one of ``encoders.ENCODERS``, without which the output does not open.
        bitrate_kbps, keyframe_interval_s: of H.264, as ``h264.Settings``.
        codec: four characters ("MJPG"): OpenCV writes the video, in this codec.
    """

    OPTIONS = ("queue", "min_free_mb", "quality", *_VIDEO_OPTIONS)

    def __init__(self, uri: str, path: str, queue: int = 8, min_free_mb: int = 64) -> None:
        super().__init__(uri)
        self.path = Path(path)
        self.queue = check_int(uri, "queue", queue, 1, 64)
        self._min_free = check_int(uri, "min_free_mb", min_free_mb, 0, 1 << 24) << 20
        self._checked_at = float("-inf")

    @classmethod
    def from_uri(cls, uri: OutputUri, **options: Any) -> Sink:
        if uri.kind == "video":
            if "quality" in options:
                raise ConfigError(f"output {uri}: quality is for pictures only")
            return VideoSink(uri.text, uri.path, **options)
        for name in _VIDEO_OPTIONS:
            if name in options:
                raise ConfigError(f"output {uri}: {name} is for videos only")
        return (NumberedSink if uri.kind == "frames" else PictureSink)(uri.text, uri.path, **options)

    def _prepare(self) -> None:
        """Make sure that there is a folder to write to, and room; creates what the module's text says."""
        folder = self.path.parent
        with self._os_errors(f"cannot create folder {folder}", "; create it, or mount its disk"):
            if not folder.is_dir():
                folder.mkdir(exist_ok=True)
            if os.path.islink(str(self.path)):
                target = os.path.join(str(folder), os.readlink(str(self.path)))
                gone = "" if os.path.exists(target) else ", which is not there (is its disk mounted?)"
                raise OutputError(
                    f"output {self.uri}: {self.path} is a symbolic link to {target}{gone}; name that file, "
                    "or remove the link"
                )
        if self.path.is_dir():
            raise OutputError(f"output {self.uri}: {self.path} is a folder; name a file")
        if os.statvfs(str(folder)).f_flag & os.ST_RDONLY:
            raise OutputError(f"output {self.uri}: the disk of {folder} is mounted read-only")
        if not os.access(str(folder), os.W_OK | os.X_OK, effective_ids=True):
            raise AccessError(f"output {self.uri}: this user may not write to {folder}")
        self._checked_at = float("-inf")
        self._check_space()

    def _check_space(self) -> None:
        now = time.monotonic()
        if now - self._checked_at < _CHECK_S:
            return
        self._checked_at = now
        disk = os.statvfs(str(self.path.parent))
        free = disk.f_bavail * disk.f_frsize
        if free < self._min_free:
            raise OutputError(
                f"output {self.uri}: {free >> 20} MiB free on its disk, "
                f"{self._min_free >> 20} MiB must stay free (min_free_mb)"
            )

    @contextlib.contextmanager
    def _os_errors(self, doing: str, advice: str = "") -> Iterator[None]:
        """Turns an OSError into an error of ours with the same cause."""
        try:
            yield
        except OSError as error:
            kind = AccessError if isinstance(error, PermissionError) else OutputError
            why = error.strerror or str(error)
            raise kind(f"output {self.uri}: {doing}: {why}{advice}") from error


class VideoSink(FileSink):
    """A video: H.264 through GStreamer, or what OpenCV's own FFmpeg writes."""

    stall_s = CALL_S

    def __init__(
        self,
        uri: str,
        path: str,
        codec: Optional[str] = None,
        encoder: str = "auto",
        bitrate_kbps: Optional[int] = None,
        keyframe_interval_s: float = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(uri, path, **options)
        if codec is not None and not (isinstance(codec, str) and len(codec) == 4 and codec.isascii()):
            raise ConfigError(f"output {uri}: codec is {codec!r}; expected four characters, as MJPG")
        self._h264 = Settings(uri, encoder, bitrate_kbps, keyframe_interval_s, others=("opencv",))
        suffix = self.path.suffix.lower()
        if encoder not in ("auto", "opencv"):
            if suffix == ".avi":
                raise ConfigError(f"output {uri}: an .avi cannot hold H.264; name an .mp4 or .mkv, or remove encoder")
            if codec is not None:
                raise ConfigError(f"output {uri}: codec and encoder exclude each other; remove one")
        self._by_opencv = encoder == "opencv" or codec is not None or suffix == ".avi"
        self._codecs = (codec,) if codec else _CODECS[suffix]
        self._writer: Optional[Any] = None  # a FileWriter or a cv2.VideoWriter
        self._said_why = False
        self._older: Optional[Path] = None  # where an older video of this name was moved
        self._made = False  # whether the file of this name is ours
        self._frames = 0
        self._fps = 0.0
        self._slots = Slots(1.0)

    def open(self, width: int, height: int, fps: float) -> None:
        self._prepare()
        with self._os_errors(f"cannot move the older {self.path} aside"):
            self._older = self._move_aside()
        self._frames, self._made = 0, False
        self._fps = fps
        self._slots = Slots(fps)
        try:
            with self._os_errors(f"cannot write {self.path}"):
                # "x": a file that has appeared meanwhile, or a link, is neither written over nor taken back
                with open(str(self.path), "x+b", buffering=0) as file:
                    self._made = True
                    if not self._by_opencv:
                        self._writer = self._open_h264(width, height, file.fileno())
            if self._writer is None:
                self._writer = self._open_opencv(width, height)
        except (EdgegsError, OSError):
            self._take_back()
            raise

    def _open_h264(self, width: int, height: int, descriptor: int) -> Optional[FileWriter]:
        """None where OpenCV is to write the video because GStreamer cannot."""
        wanted = self._h264.encoder
        try:
            video = self._h264.video(width, height, self._fps, encoders.choose(wanted))
            writer = FileWriter(video, self.path.suffix.lower(), descriptor)
        except DeviceError as error:
            if wanted != "auto":
                raise DeviceError(f"output {self.uri}: {error}") from error
            if not self._said_why:
                self._said_why = True
                _log.info("output %s: not H.264 but OpenCV's %s: %s", self.uri, self._codecs[0], error)
            return None
        except OutputError as error:
            raise self._named(error) from error
        self._writer = writer  # from here on, interrupt() reaches it
        try:
            writer.wait_ready()
        except OutputError as error:
            self._writer = None
            writer.abandon()
            raise self._named(error) from error
        return writer

    def _open_opencv(self, width: int, height: int) -> Any:
        for codec in self._codecs:
            writer = cv2.VideoWriter(
                str(self.path), int.from_bytes(codec.encode("ascii"), "little"), self._fps, (width, height)
            )
            if writer.isOpened():
                return writer
            writer.release()
        raise OutputError(
            "output {}: this OpenCV cannot write {} ({} at {}x{}); try .mkv or .avi, or another codec".format(
                self.uri, self.path.suffix, " or ".join(self._codecs), width, height
            )
        )

    def write(self, frame: Frame) -> bool:
        if self._writer is None:
            raise OutputError(f"output {self.uri}: not open")
        with self._os_errors(f"cannot write {self.path}"):
            self._check_space()
        if not self.path.exists():
            raise OutputError(f"output {self.uri}: the file is gone (deleted, or its disk removed)")
        copies = self._slots.copies(frame.t_mono_ns)
        for _ in range(copies):
            try:
                self._writer.write(frame.image)
            except OutputError as error:
                raise self._named(error) from error
            self._frames += 1
        return copies > 0

    def close(self) -> None:
        writer = self._writer  # kept until it has let go: ``interrupt`` must reach one that hangs
        if writer is None:
            return
        failure: Optional[OutputError] = None
        try:
            if self._frames == 0 and isinstance(writer, FileWriter):
                writer.abandon()
            else:
                writer.release()
        except OutputError as error:
            failure = self._named(error)
        self._writer = None
        size = self.path.stat().st_size if self.path.exists() else 0
        # An encoder that fails at its first frame, again and again, must not leave a file each time.
        if self._frames == 0 or size == 0 or (failure is not None and size < _HEADERS):
            self._take_back()
        if failure is not None:
            raise failure
        if self._frames > 0 and size == 0:
            raise OutputError(f"output {self.uri}: {self._frames} frames were lost")

    def interrupt(self) -> None:
        writer = self._writer
        if isinstance(writer, FileWriter):
            writer.kill()

    def _named(self, error: OutputError) -> OutputError:
        text = str(error)
        return error if text.startswith("output ") else OutputError(f"output {self.uri}: {text}")

    def _move_aside(self) -> Optional[Path]:
        if not os.path.lexists(str(self.path)):
            return None
        pattern = re.compile(re.escape(self.path.stem) + r"\.([0-9]+)" + re.escape(self.path.suffix))
        numbers = [int(m.group(1)) for m in map(pattern.fullmatch, os.listdir(str(self.path.parent))) if m]
        older = self.path.with_name(f"{self.path.stem}.{max(numbers, default=0) + 1}{self.path.suffix}")
        os.rename(str(self.path), str(older))
        return older

    def _take_back(self) -> None:
        """Undo an open that led to no frame. What others have put in this place stays."""
        if self._made:
            self._made = False
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()
        older, self._older = self._older, None
        if older is not None and not os.path.lexists(str(self.path)):
            os.rename(str(older), str(self.path))


class PictureSink(FileSink):
    """One picture, replaced by each frame in one step."""

    def __init__(self, uri: str, path: str, quality: int = 90, queue: int = 1, **options: Any) -> None:
        super().__init__(uri, path, queue=queue, **options)
        self._quality = check_int(uri, "quality", quality, 1, 100)

    def open(self, width: int, height: int, fps: float) -> None:
        self._prepare()

    def write(self, frame: Frame) -> None:
        self._replace(self.path, frame.image)

    def _replace(self, path: Path, image: np.ndarray) -> None:
        with self._os_errors(f"cannot write {path}"):
            self._check_space()
            temporary = path.with_name(f".{path.name}.part")
            files.replace(str(path), encode(image, path.suffix, self._quality), str(temporary))


class NumberedSink(PictureSink):
    """Pictures numbered without gaps, in the order in which they were delivered."""

    def __init__(self, uri: str, path: str, queue: int = 8, **options: Any) -> None:
        super().__init__(uri, path, queue=queue, **options)
        self._before, self._digits, self._after = split_frame_number(self.path.name)
        self._next = 0

    def open(self, width: int, height: int, fps: float) -> None:
        super().open(width, height, fps)
        pattern = re.compile(re.escape(self._before) + r"([0-9]+)" + re.escape(self._after))
        numbers = [int(m.group(1)) for m in map(pattern.fullmatch, os.listdir(str(self.path.parent))) if m]
        self._next = max(numbers, default=-1) + 1

    def write(self, frame: Frame) -> None:
        name = "{}{:0{}d}{}".format(self._before, self._next, self._digits, self._after)
        self._replace(self.path.with_name(name), frame.image)
        self._next += 1
