"""Fine-tunes a reduced scene against pictures of the full one: no photographs are needed.

    distill  ->  a process of its own: torch and gsplat  ->  tune

gsplat draws both scenes, by edgegs's constants, and gives the gradients; the number of splats stays. The work has a
process of its own, so that its CUDA context never meets that of our renderer, and its memory goes when it ends.

The rates and the loss are those of 3DGS (Kerbl et al. 2023, and the arguments of its trainer): Adam with eps 1e-15, the
rate of the means falling to a hundredth during the run, and 0.8 L1 + 0.2 (1 - SSIM). Each picture is drawn over a
colour of its own, so that what is transparent stays so.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
import multiprocessing
import os
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from edgegs.camera import Camera
from edgegs.camera.pose import rotation_matrix, view_matrix
from edgegs.errors import DeviceError
from edgegs.kernels.headers import constants
from edgegs.scene.builder import MAX_LOG_SIGMA, MIN_SIGMA
from edgegs.scene.model import Scene

STEPS = 2000
#: Adam's rate of each parameter at the first step; that of the means is per unit of the cameras' extent.
RATES = {"means": 1.6e-4, "log_scales": 5e-3, "quats": 1e-3, "logits": 2.5e-2, "sh_dc": 2.5e-3, "sh_rest": 2.5e-3 / 20}
#: What is left of the means' rate at the last step.
FINAL_MEANS_SHARE = 0.01
DSSIM_WEIGHT = 0.2
SSIM_SIGMA, SSIM_TAPS = 1.5, 11
SSIM_C1, SSIM_C2 = 0.01**2, 0.03**2
#: Views that are only ever looked at: they say which step was the best. At most so many, and one in so many of all.
MAX_VALIDATION, VALIDATION_SHARE = 8, 8
#: Times that the validation views are drawn.
CHECKS = 20
#: How far a training view is moved: of the distance to the next camera, and never more than of the scene's radius.
SHIFT_OF_GAP, SHIFT_OF_RADIUS, TURN_DEG = 0.25, 0.02, 2.0
_EXTENT_SLACK = 1.1  # x the farthest camera's distance from their middle, as 3DGS has it
_MAX_DB = 100.0
_SHOWN = 300
_MAX_LOG_SIGMA = MAX_LOG_SIGMA - 1e-6  # room for rounding to float32
_C = constants()

Progress = Callable[[int, int], None]


class Distilled(NamedTuple):
    """What came of it: PSNR on the validation views, drawn by gsplat, to the full scene, before and after."""

    scene: Scene
    before_db: float
    after_db: float
    best_step: int  # 0: the input was never bettered


def distill(
    full: Scene, reduced: Scene, cameras: Sequence[Camera], steps: int = STEPS, progress: Optional[Progress] = None
) -> Scene:
    """The reduced scene, fine-tuned to look like the full one from views like ``cameras``; see ``distilled``."""
    return distilled(full, reduced, cameras, steps, progress).scene


def distilled(
    full: Scene, reduced: Scene, cameras: Sequence[Camera], steps: int = STEPS, progress: Optional[Progress] = None
) -> Distilled:
    """Fine-tune ``reduced`` against pictures of ``full``; two runs differ in the last digits (atomics on the GPU).

    Args:
        reduced: its number of splats, their order and its SH degree stay.
        cameras: at the sizes to draw. One in eight, at most eight, only choose the step that is kept.
        progress: called as ``progress(steps_done, steps)``.

    Returns:
        The scene of the best check, with no ``file_sha256``: it is no file's. Where no step was better than the input
        on the validation views it is the input, and its ``warnings`` say so.

    Raises:
        DeviceError: torch, gsplat or the GPU is missing, or failed.
    """
    if steps < 1 or not cameras or not reduced.n_splats:
        raise ValueError("distilling needs a step, a camera and a splat")
    check_installed()
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    job = (full, reduced, tuple(cameras), steps)
    process = context.Process(target=_serve, args=(theirs, job), daemon=True)
    process.start()
    theirs.close()
    try:
        while True:
            kind, answer = pipe.recv()
            if kind == "failed":
                raise DeviceError(f"--distill: {answer}")
            if kind == "done":
                return _judged(reduced, steps, *answer)
            if progress is not None:
                progress(answer, steps)
    except (EOFError, OSError):
        raise DeviceError("--distill: its process ended without a word; was it short of memory?") from None
    finally:
        pipe.close()
        process.join(5)
        if process.is_alive():
            process.terminate()
            process.join()


def check_installed() -> None:
    """Raise DeviceError, naming what to install, unless torch and gsplat are there; imports neither."""
    for package in ("torch", "gsplat"):
        if importlib.util.find_spec(package) is None:
            raise DeviceError(
                f"--distill: {package} is not installed; `pip install 'edgegs[distill]'` on a workstation with an "
                "NVIDIA GPU and the CUDA toolkit (nvcc)"
            )


def _judged(
    reduced: Scene, steps: int, arrays: Dict[str, np.ndarray], dbs: Tuple[float, float], best: int
) -> Distilled:
    if best:
        return Distilled(scene_of(reduced, arrays), *dbs, best)
    says = f"distilling: none of {steps:,} steps was better than the scene as it was ({dbs[0]:.2f} dB); left as it was"
    return Distilled(dataclasses.replace(reduced, warnings=[*reduced.warnings, says]), *dbs, 0)


def parameters(scene: Scene) -> Dict[str, np.ndarray]:
    """What is optimised, float32: ``means``, ``log_scales``, ``quats``, ``logits``, ``sh_dc``, ``sh_rest``.

    Opacities above what a splat may cover count as that much: gsplat's own limit is higher than the kernels'.
    """
    opacities = np.clip(scene.opacities.astype(np.float64), 1e-6, _C["ALPHA_MAX"])
    return {
        "means": scene.means,
        "log_scales": np.log(np.maximum(scene.scales, np.float32(MIN_SIGMA))),
        "quats": scene.quats,
        "logits": (np.log(opacities) - np.log1p(-opacities)).astype(np.float32),
        "sh_dc": scene.sh[:, :1],
        "sh_rest": scene.sh[:, 1:],
    }


def scene_of(like: Scene, arrays: Dict[str, np.ndarray]) -> Scene:
    """The scene of such parameters, (N, …) each; a splat with one that is no number stays as it is in ``like``."""
    with np.errstate(all="ignore"):
        quats = arrays["quats"].astype(np.float64)
        quats /= np.sqrt((quats * quats).sum(axis=1, keepdims=True))
        new: Dict[str, Any] = {
            "means": arrays["means"],
            "scales": np.exp(np.clip(arrays["log_scales"].astype(np.float64), np.log(MIN_SIGMA), _MAX_LOG_SIGMA)),
            "quats": quats,
            "opacities": 1 / (1 + np.exp(-np.clip(arrays["logits"].astype(np.float64), -16, 16))),
            "sh": np.concatenate([arrays["sh_dc"], arrays["sh_rest"]], axis=1),
        }
    good = np.ones(like.n_splats, bool)
    for array in new.values():
        good &= np.isfinite(array.reshape(len(array), -1)).all(axis=1)
    for name, array in new.items():
        new[name] = np.ascontiguousarray(array, np.float32)
        new[name][~good] = getattr(like, name)[~good]
    return dataclasses.replace(like, **new, file_sha256="")


def rates(step: int, steps: int, extent: float) -> Dict[str, float]:
    """Adam's rate of each parameter at ``step`` of ``steps``; see the module."""
    means = RATES["means"] * extent * FINAL_MEANS_SHARE ** (step / max(1, steps - 1))
    return {**RATES, "means": means}


def split_views(cameras: Sequence[Camera]) -> Tuple[List[Camera], List[Camera]]:
    """(to train with, to validate with): evenly spread and apart, unless there is only one."""
    if len(cameras) == 1:
        return list(cameras), list(cameras)
    n = min(MAX_VALIDATION, max(1, len(cameras) // VALIDATION_SHARE))
    chosen = {int(i) for i in np.linspace(0, len(cameras) - 1, n + 2)[1:-1]}
    return (
        [camera for i, camera in enumerate(cameras) if i not in chosen],
        [camera for i, camera in enumerate(cameras) if i in chosen],
    )


def view_spread(cameras: Sequence[Camera], radius: float) -> Tuple[float, float]:
    """(extent of the cameras as 3DGS has it, how far to move a view), scene units; ``radius`` is the scene's."""
    eyes = np.stack([camera.eye for camera in cameras])
    extent = _EXTENT_SLACK * float(np.linalg.norm(eyes - eyes.mean(axis=0), axis=1).max())
    shift = SHIFT_OF_RADIUS * radius
    if len(eyes) > 1:
        some = eyes[:: -(-len(eyes) // 512)]  # pairs grow as the square
        squares = (some * some).sum(axis=1)
        gaps = squares[:, None] + squares - 2 * some @ some.T
        np.fill_diagonal(gaps, np.inf)
        gap = float(np.sqrt(max(0.0, float(np.median(gaps.min(axis=1))))))
        shift = min(shift, SHIFT_OF_GAP * gap)
    return (extent if extent > 1e-3 * radius else radius), shift


def jittered(camera: Camera, rng: np.random.RandomState, shift: float) -> Camera:
    """The view moved by about ``shift`` and turned by about ``TURN_DEG``."""
    half_turn = np.radians(TURN_DEG) / 2 * rng.normal(size=3)
    rotation = rotation_matrix(np.array([1.0, *half_turn])) @ camera.viewmat[:3, :3]
    return dataclasses.replace(camera, viewmat=view_matrix(camera.eye + shift * rng.normal(size=3), rotation))


def _serve(pipe: Any, job: Tuple[Scene, Scene, Sequence[Camera], int]) -> None:
    """The process: sends ("step", n), and at last ("done", what ``tune`` gives) or ("failed", why)."""
    os.dup2(2, 1)  # what gsplat's compiler prints is no part of an answer on stdout
    try:
        torch: Any = importlib.import_module("torch")
        if not torch.cuda.is_available():
            raise RuntimeError("this torch sees no NVIDIA GPU, and fine-tuning needs one")
        gsplat: Any = importlib.import_module("gsplat")
        _check_compiled()
        pipe.send(("done", tune(torch, gsplat.rasterization, "cuda", *job, lambda step: pipe.send(("step", step)))))
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return
    except Exception as error:  # of torch, of gsplat and its compiler: anything
        lines = str(error).strip().splitlines() or [""]
        with contextlib.suppress(OSError):
            pipe.send(("failed", f"{type(error).__name__}: {lines[0][:_SHOWN]}"))


def _check_compiled() -> None:
    """Let gsplat compile its kernels. Without a CUDA toolkit it only prints so, and fails unexplained when it draws."""
    with contextlib.suppress(ImportError):  # where a later gsplat keeps them elsewhere: drawing will tell
        if getattr(importlib.import_module("gsplat.cuda._backend"), "_C", True) is None:
            raise RuntimeError("gsplat found no CUDA toolkit (nvcc) to compile its kernels with; install one")


def tune(
    torch: Any,
    rasterization: Any,
    device: str,
    full: Scene,
    reduced: Scene,
    cameras: Sequence[Camera],
    steps: int,
    report: Callable[[int], None],
) -> Tuple[Dict[str, np.ndarray], Tuple[float, float], int]:
    """(the best parameters, PSNR before and after, the best step: 0 is the input)."""
    rng = np.random.RandomState(0)
    training, validation = split_views(cameras)
    extent, shift = view_spread(cameras, full.bounds()[1])
    window = ssim_window(torch, device)

    def tensor(array: Any) -> Any:
        return torch.from_numpy(np.array(array, np.float32)).to(device)

    target = {name: tensor(array) for name, array in parameters(full).items()}
    splats = {name: tensor(array).requires_grad_() for name, array in parameters(reduced).items()}
    groups = [{"params": [value], "name": name} for name, value in splats.items() if value.numel()]
    adam = torch.optim.Adam(groups, lr=0.0, eps=1e-15)

    def draw(of: Dict[str, Any], scene: Scene, camera: Camera, background: Any) -> Any:
        """(H, W, 3) RGB."""
        colours, _, _ = rasterization(
            means=of["means"],
            quats=of["quats"],
            scales=of["log_scales"].exp(),
            opacities=of["logits"].sigmoid(),
            colors=torch.cat([of["sh_dc"], of["sh_rest"]], dim=1),
            viewmats=tensor(camera.viewmat[None]),
            Ks=tensor(camera.K[None]),
            width=camera.width,
            height=camera.height,
            near_plane=camera.near,
            far_plane=camera.far,
            eps2d=_C["COV2D_BLUR"],
            sh_degree=scene.sh_degree,
            packed=False,
            backgrounds=background,
            rasterize_mode="antialiased" if scene.antialiased else "classic",
        )
        return colours[0]

    black = tensor(np.zeros((1, 3)))
    with torch.no_grad():
        wanted = [draw(target, full, camera, black).clamp(0, 1) for camera in validation]

    def validate() -> float:
        """Mean PSNR in dB; anything that is no number counts as the worst."""
        dbs = []
        with torch.no_grad():
            for camera, image in zip(validation, wanted):
                error = float(((draw(splats, reduced, camera, black).clamp(0, 1) - image) ** 2).mean())
                dbs.append(min(_MAX_DB, -10 * np.log10(max(error, 1e-12))) if np.isfinite(error) else 0.0)
        return float(np.mean(dbs))

    def copy() -> Dict[str, Any]:
        return {name: value.detach().clone() for name, value in splats.items()}

    before = after = validate()
    best, best_step = copy(), 0
    every = max(1, steps // CHECKS)
    order: List[int] = []
    for step in range(steps):
        if not order:
            order = list(rng.permutation(len(training)))
        camera = training[order.pop()]
        if step % 2:
            camera = jittered(camera, rng, shift)
        background = tensor(rng.uniform(size=(1, 3)))
        with torch.no_grad():
            image = draw(target, full, camera, background)
        loss = difference(torch, draw(splats, reduced, camera, background), image, window)
        adam.zero_grad(set_to_none=True)
        loss.backward()
        now = rates(step, steps, extent)
        for group in adam.param_groups:
            group["lr"] = now[group["name"]]
            for value in group["params"]:
                if value.grad is not None:  # one splat seen edge-on must not spoil its moments for good
                    value.grad.nan_to_num_(0.0, 0.0, 0.0)
        adam.step()
        if (step + 1) % every == 0 or step + 1 == steps:
            db = validate()
            if db > after:
                best, best_step, after = copy(), step + 1, db
        if (step + 1) % max(1, steps // 100) == 0 or step + 1 == steps:
            report(step + 1)
    return {name: value.cpu().numpy() for name, value in best.items()}, (before, after), best_step


def ssim_window(torch: Any, device: str) -> Any:
    """(3, 1, 1, taps) float32: the Gaussian of SSIM, for each channel."""
    at = np.arange(SSIM_TAPS) - SSIM_TAPS // 2
    weights = np.exp(-(at**2) / (2 * SSIM_SIGMA**2))
    return torch.from_numpy((weights / weights.sum()).astype(np.float32)).to(device).expand(3, 1, 1, SSIM_TAPS)


def ssim(torch: Any, one: Any, other: Any, window: Any) -> Any:
    """Mean structural similarity of two pictures (H, W, 3) in 0..1; black around them, as 3DGS has it."""
    a, b = (picture.permute(2, 0, 1) for picture in (one, other))
    maps = torch.stack([a, b, a * a, b * b, a * b])
    half = SSIM_TAPS // 2
    # channel by channel, which torch does in float32 everywhere: differences of squares need it
    maps = torch.nn.functional.conv2d(maps, window, padding=(0, half), groups=3)
    maps = torch.nn.functional.conv2d(maps, window.transpose(2, 3), padding=(half, 0), groups=3)
    mean_a, mean_b = maps[0], maps[1]
    var_a, var_b = maps[2] - mean_a * mean_a, maps[3] - mean_b * mean_b
    covariance = maps[4] - mean_a * mean_b
    upper = (2 * mean_a * mean_b + SSIM_C1) * (2 * covariance + SSIM_C2)
    lower = (mean_a * mean_a + mean_b * mean_b + SSIM_C1) * (var_a + var_b + SSIM_C2)
    return (upper / lower).mean()


def difference(torch: Any, drawn: Any, wanted: Any, window: Any) -> Any:
    """3DGS's loss of a picture."""
    l1 = (drawn - wanted).abs().mean()
    return (1 - DSSIM_WEIGHT) * l1 + DSSIM_WEIGHT * (1 - ssim(torch, drawn, wanted, window))
