"""Which variant draws a scene fastest on this board, among those whose pictures are good enough.

All are measured side by side (see ``bench``), from several views. What counts is a frame's time on what draws, as
``bench`` compares it (``compared_ms``): the median of each view, and the mean of those over the views. Pictures are
compared with those of the exact pipeline, and the worst view decides.
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Sequence

import numpy as np

from edgegs.backends.base import Backend
from edgegs.bench.bench import (
    TURN,
    RendererContender,
    Sample,
    choices_of,
    combination,
    compare,
    compared_ms,
    measure,
)
from edgegs.bench.ladder import milliseconds, unique
from edgegs.camera import Camera
from edgegs.errors import DeviceError, DeviceLost, UsageError
from edgegs.frame import STAGES
from edgegs.kernels.variants import BASELINE, EXACT, VARIANTS, Variant, drawable, variant
from edgegs.pack import AnyScene, PackedScene
from edgegs.renderer import Renderer
from edgegs.tuned import allows_bits

#: Tried beside the named variants.
COMBINATIONS = (
    "fp32-split-tight-fast-dual",
    "fp32-bins-tight-fast-patch16",
    "packed-split-tight-fast-dual",
    "packed-packed32-tight-fast-dual",
)
#: Times so near to each other are one: the better picture wins then, whatever the noise of this run.
TIE = 1.01
#: An answer other than the default must be faster than it by more than this: small gains are noise as often as not.
GAIN = 1.015

Progress = Callable[[int, int], None]


@dataclass
class Row:
    """What was found of one variant.

    Attributes:
        stage_ms: stage -> the mean over the views of the median.
        total_ms: of all stages, likewise.
        queued_ms: of the device a frame, of frames in a row that nobody reads, likewise; None where that is not known.
        ms: by which it is compared with the others, one of both.
        views_db: PSNR of each view to the exact picture; infinite where no pixel differs.
        refusal: why it could not be drawn; "" where it could.
    """

    variant: Variant
    stage_ms: Dict[str, float] = field(default_factory=dict)
    total_ms: float = math.inf
    queued_ms: Optional[float] = None
    ms: float = math.inf
    views_db: List[float] = field(default_factory=list)
    refusal: str = ""

    @property
    def psnr_db(self) -> float:
        """Of the worst view, dB."""
        return min(self.views_db) if self.views_db else -math.inf


class ViewContender(RendererContender):
    """One variant, drawn through the camera that it is told to look through."""

    def __init__(
        self, backend: Backend, scene: AnyScene, camera: Camera, chosen: Variant, background: Sequence[float]
    ) -> None:
        self.name, self.choices, self.camera = chosen.name, choices_of(chosen), camera
        self._renderer = Renderer(backend, scene, camera.width, camera.height, combination(chosen), background)

    def draw(self) -> Sample:
        frame = self._renderer.render(self.camera)
        self._image, self.n_visible = frame.image, frame.n_visible
        return Sample(frame.stage_ms, sum(frame.stage_ms.values()), frame.frame_ms)


def candidates(min_psnr_db: float, default: Variant, tensor_cores: bool = False) -> List[Variant]:
    """What is tried, the exact ones first.

    Args:
        min_psnr_db: what pictures have to keep to.
        default: what ``auto`` takes where nothing is remembered.
        tensor_cores: whether the backend has them.
    """
    named = [BASELINE, EXACT, *VARIANTS.values(), *(variant(name) for name in COMBINATIONS), default]
    has_bits = allows_bits(min_psnr_db)
    return unique([one for one in drawable(named, tensor_cores) if has_bits or one.exponential != "bits"])


class Tuning:
    """One board, one scene, one size.

    Args:
        backend: stays the caller's.
        scene, packed: the scene as each storage is given it; the same twice where its file is packed.
        cameras: what it is looked at from, all of one size.
        background: RGB, 0..1.
    """

    def __init__(
        self,
        backend: Backend,
        scene: AnyScene,
        packed: PackedScene,
        cameras: Sequence[Camera],
        background: Sequence[float] = (0.0, 0.0, 0.0),
    ) -> None:
        self._backend, self._scenes = backend, {"fp32": scene, "packed": packed}
        self._cameras, self._background = list(cameras), background
        self._exact: Optional[List[np.ndarray]] = None
        #: Whose pictures the others are compared with; None before ``measure``.
        self.reference: Optional[Variant] = None

    def measure(
        self, tried: Sequence[Variant], warmup: int, repeats: int, progress: Optional[Progress] = None
    ) -> List[Row]:
        """Draw and compare; rows in the order of ``tried``, of which one of the first must be exact.

        Those that find no room beside the others are measured after them.

        Args:
            warmup, repeats: frames before any counts, and frames that do, of each view.
            progress: called as ``progress(done, of)``; what it raises ends the work.

        Raises:
            DeviceError: nothing exact can be drawn here. UsageError: no view sees any of the scene.
        """
        rows = [Row(one) for one in tried]
        waiting = rows
        while waiting:
            with ExitStack() as stack:
                together: List[Row] = []
                contenders: List[ViewContender] = []
                later: List[Row] = []
                for row in waiting:
                    try:
                        contenders.append(self._open(row, stack))
                        together.append(row)
                    except DeviceLost:
                        raise
                    except DeviceError as error:
                        if contenders:
                            later.append(row)
                        else:
                            row.refusal = str(error)
                if contenders:
                    self._time(together, contenders, warmup, repeats, progress)
            waiting = later
        drawn = [row for row in rows if not row.refusal]
        for row, ms in zip(drawn, compared_ms([row.queued_ms for row in drawn], [row.total_ms for row in drawn])):
            row.ms = ms
        return rows

    def _open(self, row: Row, stack: ExitStack) -> ViewContender:
        """Make a contender that has drawn every view: from here on it needs no more memory."""
        if self._exact is None and not row.variant.is_exact:
            raise DeviceError("nothing to compare it with: no exact variant could be drawn")
        chosen = row.variant
        contender = ViewContender(
            self._backend, self._scenes[chosen.storage], self._cameras[0], chosen, self._background
        )
        try:
            row.views_db = self._compare(contender)
            self.reference = self.reference or chosen
        except BaseException:
            contender.close()
            raise
        stack.callback(contender.close)
        return contender

    def _compare(self, contender: ViewContender) -> List[float]:
        """PSNR of each view, dB; the first contender's pictures are what all are compared with."""
        pictures, n_visible = [], 0
        for camera in self._cameras:
            contender.camera = camera
            contender.draw()
            pictures.append(contender.picture())
            n_visible += contender.n_visible or 0
        if self._exact is None:
            if not n_visible:
                raise UsageError(f"not one of {len(self._cameras)} views sees any of the scene; choose others")
            self._exact = pictures
        found = [compare(picture, exact)[0] for picture, exact in zip(pictures, self._exact)]
        return [math.inf if psnr_db is None else psnr_db for psnr_db in found]

    def _time(
        self,
        rows: Sequence[Row],
        contenders: Sequence[ViewContender],
        warmup: int,
        repeats: int,
        progress: Optional[Progress],
    ) -> None:
        n_views, n_rounds = len(self._cameras), -(-repeats // TURN)
        totals: List[List[float]] = [[] for _ in rows]
        queued: List[List[float]] = [[] for _ in rows]
        stages: List[List[Dict[str, float]]] = [[] for _ in rows]
        for view, camera in enumerate(self._cameras):
            for contender in contenders:
                contender.camera = camera

            def tell(done: int, of: int, before: int = view * n_rounds) -> None:
                if progress:
                    progress(before + done, n_views * n_rounds)

            for index, measured in enumerate(measure(contenders, warmup, repeats, tell)):
                samples = measured.samples
                totals[index].append(float(np.median([sample.total_ms for sample in samples])))
                if measured.queued_ms:
                    queued[index].append(float(np.median(measured.queued_ms)))
                stages[index].append(
                    {stage: float(np.median([sample.stage_ms[stage] for sample in samples])) for stage in STAGES}
                )
        for index, row in enumerate(rows):
            row.total_ms = float(np.mean(totals[index]))
            row.queued_ms = float(np.mean(queued[index])) if queued[index] else None
            row.stage_ms = {stage: float(np.mean([view[stage] for view in stages[index]])) for stage in STAGES}


def choose(rows: Sequence[Row], min_psnr_db: float, default: Optional[Variant] = None) -> Row:
    """The fastest whose worst view keeps to ``min_psnr_db``; of those within ``TIE`` of it, the best picture.

    Args:
        default: what ``auto`` is without an answer; stays so unless another is faster by more than ``GAIN``.

    Raises:
        DeviceError: there is none.
    """
    good = [row for row in rows if not row.refusal and row.psnr_db >= min_psnr_db]
    if not good:
        said = next((row.refusal for row in rows if row.refusal), "")
        raise DeviceError(f"no variant can be drawn here{': ' + said if said else ''}")
    fastest = min(row.ms for row in good)
    for row in good:
        if default is not None and combination(row.variant) == combination(default) and row.ms <= GAIN * fastest:
            return row
    near = [row for row in good if row.ms <= TIE * fastest]
    return max(near, key=lambda row: (row.psnr_db, -row.ms))


def as_json(rows: Sequence[Row], chosen: Row, min_psnr_db: float) -> List[Dict[str, Any]]:
    """Rows of the document: ``psnr_db`` is null where no pixel differs or nothing was drawn (``refusal``)."""
    base = baseline_ms(rows)
    return [
        {
            "name": row.variant.name,
            "choices": choices_of(row.variant),
            "stage_ms": {stage: round(ms, 5) for stage, ms in row.stage_ms.items()},
            "total_ms": None if row.refusal else round(row.total_ms, 5),
            "queued_ms": None if row.queued_ms is None else round(row.queued_ms, 5),
            "ratio_to_baseline": None if row.refusal or not base else round(base / row.ms, 4),
            "psnr_db": round(row.psnr_db, 2) if math.isfinite(row.psnr_db) else None,
            "is_good": not row.refusal and row.psnr_db >= min_psnr_db,
            "is_chosen": row is chosen,
            "refusal": row.refusal or None,
        }
        for row in rows
    ]


def baseline_ms(rows: Sequence[Row]) -> Optional[float]:
    """What baseline took; None where it could not be drawn."""
    return next((row.ms for row in rows if row.variant == BASELINE and not row.refusal), None)


def text_table(document: Dict[str, Any]) -> str:
    """The document of ``edgegs tune`` for a terminal."""
    head = ["", *STAGES, "total", "queued", "×baseline", "PSNR dB", ""]
    lines = [head]
    for row in document["rows"]:
        if row["refusal"]:
            continue
        psnr = "equal" if row["psnr_db"] is None else f"{row['psnr_db']:.1f}"
        verdict = "" if row["is_good"] else "below {:g} dB".format(document["min_psnr_db"])
        marks = ["chosen"] if row["is_chosen"] else []
        marks += ["the default"] if row["name"] == document["default"] else []
        lines.append(
            [
                row["name"],
                *(milliseconds(row["stage_ms"][stage]) for stage in STAGES),
                milliseconds(row["total_ms"]),
                milliseconds(row["queued_ms"]) if row["queued_ms"] else "",
                "" if row["ratio_to_baseline"] is None else f"{row['ratio_to_baseline']:.2f}",
                "exact" if row["name"] == document["reference"] else psnr,
                ", ".join([*marks, *([verdict] if verdict else [])]),
            ]
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    texts = [_caption(document)]
    for line in lines:
        padded = [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:-1], widths[1:-1]))]
        texts.append("  ".join([*padded, line[-1]]).rstrip())
    texts += ["{}: {}".format(row["name"], row["refusal"]) for row in document["rows"] if row["refusal"]]
    return "\n".join(texts)


def _caption(document: Dict[str, Any]) -> str:
    scene = document["scene"]
    parts = [
        "{}, {:,} splats, {}x{}".format(scene["path"], scene["n_splats"], document["width"], document["height"]),
        document["device"],
        "driver {}".format(document["driver"]) if document["driver"] else "",
        "{} views {}, {} frames of each, p50 in ms".format(
            document["n_views"], document["views"], document["repeats"]
        ).replace("1 views", "1 view"),
        "PSNR of the worst view to the picture of {}".format(document["reference"]),
    ]
    return "; ".join(part for part in parts if part)
