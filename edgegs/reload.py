"""Another configuration for a run that goes on: read, checked and loaded beside the loop, then swapped in at once.

A ``Reload`` is a thread: it reads the configuration again and, where that needs it, the scene. The loop asks each frame
whether it is done, and either swaps (see ``Show.swap``) or keeps everything as it was, with the reason.
"""

from __future__ import annotations

import logging
import threading
from typing import Callable, Optional

from edgegs.backends import create
from edgegs.backends.base import Backend
from edgegs.choosing import choose_variant, scoring_file, task_of
from edgegs.config import Config
from edgegs.drawing import SceneFacts, load_scene, signature
from edgegs.errors import ConfigError, EdgegsError
from edgegs.pack import AnyScene

log = logging.getLogger(__name__)


class _Abandoned(Exception):
    """The run ends while a scene is still being read."""


class Reload:
    """One reload under way.

    Args:
        reread: returns the configuration as it is written now; raises EdgegsError.
        current: the configuration in use.
        scene: what is drawn now.
        backend_name: who draws.

    Attributes (once ``is_done``):
        error: why nothing can be swapped; None when all is well.
        config, scene, facts: the new ones; ``scene`` is None where the one on the device stays.
    """

    def __init__(
        self, reread: Callable[[], Config], current: Config, scene: SceneFacts, backend_name: str
    ) -> None:
        self.error: Optional[EdgegsError] = None
        self.config = current
        self.scene: Optional[AnyScene] = None
        self.facts = scene
        self._reread, self._current, self._backend_name = reread, current, backend_name
        self._abandoned = False
        self._thread = threading.Thread(target=self._run, name="edgegs-reload", daemon=True)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def abandon(self) -> None:
        """The run ends: read no further."""
        self._abandoned = True

    def _run(self) -> None:
        try:
            config = self._reread()
            check_change(self._current, config)
            if needs_renderer(self._current, config, self.facts):
                self.scene, self.facts = load_scene(config, self.facts.board, self._scorer, self._progress)
            self.config = config
        except EdgegsError as error:
            self.error = error
        except _Abandoned:
            self.error = EdgegsError("the run ends")
        except MemoryError:
            self.error = EdgegsError("out of memory; lower scene.max_gaussians")
        except Exception as error:  # whatever it is, the picture goes on
            log.debug("reload", exc_info=error)
            self.error = EdgegsError(f"{type(error).__name__}: {error}")

    def _scorer(self) -> Backend:
        """A backend of this thread's own: the loop's may not draw for two."""
        return create(self._backend_name, self._current.render.threads)[0]

    def _progress(self, rows_done: int, n_rows: int) -> None:
        if self._abandoned:
            raise _Abandoned


def check_change(old: Config, new: Config) -> None:
    """Raise ConfigError for what only a restart can change."""
    for key in ("backend", "threads"):
        before, after = getattr(old.render, key), getattr(new.render, key)
        if before != after:
            raise ConfigError(f"render.{key} cannot change from {before} to {after} while edgegs runs; restart it")


def needs_renderer(old: Config, new: Config, scene: SceneFacts) -> bool:
    """Whether the scene has to be brought to the device again."""

    def drawn(config: Config) -> object:
        camera, render = config.camera, config.render
        behind = camera.background is not None
        size = camera.width, camera.height
        return config.scene, scoring_file(config), size, render.variant, render.background, behind

    if drawn(old) != drawn(new) or signature(new.scene.path) != scene.signature:
        return True
    return new.render.variant == "auto" and _is_tuned_otherwise(new, scene)


def _is_tuned_otherwise(config: Config, scene: SceneFacts) -> bool:
    """Whether `edgegs tune` was run meanwhile, or another error is allowed now, so that another variant is drawn."""
    try:
        return choose_variant(config, task_of(config, scene.board))[0] != scene.variant
    except EdgegsError:  # a cameras.json that is gone: of no matter to what is on the device
        return False

