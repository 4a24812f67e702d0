"""Which variant a configuration's scene is drawn with: decided before the scene is prepared, since storage follows."""

from __future__ import annotations

from typing import Callable, Optional, Tuple

from edgegs.config import Config
from edgegs.pack.prepare import MAX_VIEWS, Wish
from edgegs.pack.views import training_views
from edgegs.tuned import MIN_PSNR_DB, Answer, Board, Task, find


def task_of(config: Config, board: Board) -> Task:
    """What ``edgegs tune`` answers for a configuration on a board; errors as ``training_views``."""
    settings, camera, judges = config.scene, config.camera, scoring_file(config)
    views = None if judges is None else training_views(judges, max_views=MAX_VIEWS)[0]
    wish = Wish("fp32", settings.max_gaussians, settings.frame, views)
    allowed = config.render.max_error_db
    return Task(board, camera.width, camera.height, wish, MIN_PSNR_DB if allowed is None else allowed)


def choose_variant(
    config: Config, task: Task, progress: Optional[Callable[[int, int], None]] = None
) -> Tuple[str, Optional[Answer]]:
    """What a configuration's scene is drawn with, and what that was learnt from; ``auto`` where nothing was measured.

    Args:
        progress: called as ``progress(done, of)``; what it raises ends the work.
    """
    if config.render.variant != "auto":
        return config.render.variant, None
    answer = find(task, config.scene.path, progress)
    return ("auto", None) if answer is None else (answer.variant, answer)


def decided(config: Config, variant_name: str) -> Config:
    """The configuration with the variant that its scene was prepared for."""
    render = config.render.model_copy(update={"variant": variant_name})
    return config.model_copy(update={"render": render})


def scoring_file(config: Config) -> Optional[str]:
    """The cameras.json whose views decide which splats are drawn: what the camera flies along. None: no file does."""
    path = config.camera.path
    flies = path is not None and path.kind == "cameras_json"
    return path.path if flies and config.scene.max_gaussians is not None else None  # type: ignore[union-attr]
