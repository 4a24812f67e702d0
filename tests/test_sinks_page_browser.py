"""The page in a real Chromium that stays open: pixels, bars, curves, a phone, and a server that comes back."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import numpy as np
import pytest
from chromium import CHROMIUM, MISSING, Browser
from web_support import Viewer, serving, until

from edgegs.frame import Frame

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=MISSING)

WIDTH, HEIGHT = 320, 180
COLOURS = {"red": (40, 40, 220), "green": (40, 200, 40), "blue": (220, 60, 40)}  # BGR
STAGES = ("project", "duplicate", "sort", "ranges", "rasterize")
#: Mean colour of the picture as the page shows it, [red, green, blue].
SHOWN = """(() => {
  const canvas = document.createElement("canvas"), context = canvas.getContext("2d");
  canvas.width = canvas.height = 8;
  context.drawImage(document.getElementById("stream"), 0, 0, 8, 8);
  const data = context.getImageData(0, 0, 8, 8).data, mean = [0, 0, 0];
  for (let index = 0; index < data.length; index += 4)
    for (let channel = 0; channel < 3; channel += 1) mean[channel] += data[index + channel] / 64;
  return mean;
})()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("chromium")) as started:
        yield started


@pytest.fixture
def serve():
    with serving() as start:
        yield start


class Feed:
    """Offers frames of one colour, ten a second, to whichever sink it is given."""

    def __init__(self):
        self.colour, self.sink, self.index = "red", None, 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        while not self._done.wait(0.1):
            if self.sink is not None:
                image = np.full((HEIGHT, WIDTH, 3), COLOURS[self.colour], np.uint8)
                image[self.index % HEIGHT] = 0  # never the same twice
                self.sink.write(Frame(image, self.index, time.monotonic_ns(), 20.0))
                self.index += 1

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._done.set()
        self._thread.join()


@contextlib.contextmanager
def opened(browser, sink, query="", **how):
    page = browser.page(f"http://127.0.0.1:{sink.port}/{query}", **how)
    try:
        yield page
    finally:
        page.close()


class Board:
    """A status and a history that a test changes."""

    def __init__(self):
        self.sort_ms, self.frames, self.throttle = 4.0, 1, []
        self.run, self.asked = "1", []
        self.outputs = [
            {
                "uri": "mjpeg://127.0.0.1:8080",
                "name": "page",
                "state": "up",
                "required": True,
                "frames_written": 10,
                "dropped": {"slow": 3, "down": 0},
                "reconnects": 0,
                "last_error": None,
                "last_write_age_s": 0.1,
            },
            {
                "uri": "display://0",
                "name": "lobby",
                "state": "retrying",
                "required": False,
                "frames_written": 8,
                "dropped": {"slow": 0, "down": 77},
                "reconnects": 2,
                "last_error": "no <b>X server</b> at :0",
                "last_write_age_s": 75.0,
            },
        ]

    def status(self):
        self.frames += 1
        stages = {name: {"p50": 10.0, "p95": 12.0} for name in STAGES}
        stages["sort"] = {"p50": self.sort_ms, "p95": self.sort_ms}
        return {
            "fps": 27.44,
            "frame_ms": {"p50": 36.1, "p95": 41.7, "max": 58.2},
            "stages": stages,
            "n_splats": 298431,
            "n_visible": 120733,
            "n_instances": 611207,
            "frames": self.frames,
            "throttle": self.throttle,
            "outputs": self.outputs,
            "scene": "/scenes/a_scene_with_a_long_name_that_does_not_fit_on_a_telephone.ply",
            "width": WIDTH,
            "height": HEIGHT,
            "uptime_s": 3725.0,
        }

    def history(self, after):
        self.asked.append(after)
        t = [1000.0 + second for second in range(0, 600, 2) if after is None or 1000.0 + second > after]
        return {
            "now": 1599.0,
            "span_s": 600.0,
            "run": self.run,
            "total_rail": "POM_5V_IN",
            "t": t,
            "fps": [30.0] * len(t),
            "power_w": {"POM_5V_GPU": [2.0] * len(t), "POM_5V_IN": [6.0 + at % 10 / 10 for at in t]},
            "temp_c": {f"zone{number}": [40.0 + number] * len(t) for number in range(8)},
        }


def shows(page, colour):
    blue, green, red = COLOURS[colour]
    page.wait(f"(() => {{ const [r, g, b] = {SHOWN}; return Math.abs(r - {red}) < 12"
              f" && Math.abs(g - {green}) < 12 && Math.abs(b - {blue}) < 12; }})()")  # fmt: skip


def width_of(stage):
    return f"document.querySelector('#stages [data-key={stage}] i').getBoundingClientRect().width"


def test_stream_bars_and_outputs_move_with_what_the_server_says(browser, serve):
    board = Board()
    sink = serve(status=board.status, history=board.history)
    with Feed() as feed, opened(browser, sink) as page:
        feed.sink = sink
        for colour in ("red", "green", "blue"):
            feed.colour = colour
            shows(page, colour)
        # and on the screen, not only in the element
        box = page.evaluate("(({x, y, width, height}) => [x, y, width, height])(picture.getBoundingClientRect())")
        middle = page.screenshot()[int(box[1] + box[3] / 2), int(box[0] + box[2] / 2)].astype(int)
        assert np.abs(middle - COLOURS["blue"]).max() < 12 or middle.max() == 0
        page.wait("document.getElementById('link').dataset.state === 'live'")
        page.wait(f"{width_of('sort')} > 0 && {width_of('sort')} < 0.5 * {width_of('project')}")
        board.sort_ms = 30.0
        page.wait(f"{width_of('sort')} > 2 * {width_of('project')}")
        assert page.evaluate("document.getElementById('throttle').hidden")
        board.throttle = ["cooling:gpu"]
        page.wait("document.getElementById('throttle').offsetHeight > 0")
        outputs = page.evaluate("document.getElementById('outputs').innerText")
        for text in ("page", "lobby", "retrying", "8 written", "77 dropped: down", "2 reconnects", "no <b>X"):
            assert text in outputs
        assert "last frame 1 min ago" in outputs
        board.outputs[1].update(state="up", last_error=None)
        page.wait("!document.getElementById('outputs').innerText.includes('retrying')")
        assert page.problems() == []


def test_curves_show_the_minutes_before_the_page_was_opened(browser, serve):
    board = Board()
    sink = serve(status=board.status, history=board.history)
    with opened(browser, sink) as page:
        page.wait("document.querySelectorAll('#temp .line').length === 8")
        lines = "[...document.querySelectorAll('#power .line')].map((line) => line.getAttribute('d'))"
        total, gpu = page.evaluate(lines)  # the total comes first
        assert total.count("L") == gpu.count("L") == 299
        assert page.evaluate("document.querySelector('#power .main').getAttribute('d')") == total
        assert page.evaluate("document.querySelector('#power .main').getBoundingClientRect().width") > 200
        assert page.evaluate("document.querySelector('#power svg').getAttribute('aria-label')").startswith(
            "Power over the last 10 min: POM_5V_IN 6.80 watts, highest 6.80"
        )
        ticks = page.evaluate("[...document.querySelectorAll('#power .y')].map((tick) => Number(tick.textContent))")
        assert ticks == [0, 2, 4, 6, 8]
        styles = page.evaluate("[...document.querySelectorAll('#temp .line')]"
                               ".map((line) => line.style.stroke + line.style.strokeDasharray)")  # fmt: skip
        assert len(set(styles)) == 8
        until(lambda: 1598.0 in board.asked)  # afterwards only what is new
        assert board.asked.count(None) == 1
        board.run = "2"  # another run's times mean nothing here
        until(lambda: board.asked.count(None) == 2)
        assert page.problems() == []


def test_token_is_carried_and_its_lack_is_said(browser, serve):
    board = Board()
    sink = serve(status=board.status, history=board.history, token="a b&c")
    with Feed() as feed, opened(browser, sink, "?token=a%20b%26c") as page:
        feed.sink = sink
        shows(page, "red")
        page.wait("document.getElementById('fps').textContent === '27.4'")
        page.wait("document.querySelectorAll('#power .line').length === 2")
        assert page.problems() == []
    with opened(browser, sink) as page:
        page.wait("document.body && document.body.innerText.includes('a token is required')")


@pytest.mark.parametrize("dark", [False, True])
def test_fits_a_phone(browser, serve, dark):
    board = Board()
    sink = serve(status=board.status, history=board.history)
    with Feed() as feed, opened(browser, sink, width=360, height=740, mobile=True, dark=dark) as page:
        feed.sink = sink
        shows(page, "red")
        page.wait("document.querySelectorAll('#temp .line').length === 8 && !!document.querySelector('.output')")
        assert page.evaluate("document.documentElement.scrollWidth") == page.evaluate("innerWidth") == 360
        outside = page.evaluate(
            "[...document.querySelectorAll('body *')].filter((one) => one.children.length === 0"
            " && one.getBoundingClientRect().right > 360.5).map((one) => one.outerHTML)"
        )
        assert outside == []
        # every text against what lies behind it, WCAG AA
        assert page.evaluate(POOR_CONTRAST) == []
        ground = page.screenshot()[2, 2].astype(int)
        assert bool(ground.max() < 60) == dark
        assert page.problems() == []


POOR_CONTRAST = r"""(() => {
  const light = (colour) => {
    const parts = colour.match(/[\d.]+/g).slice(0, 3).map((part) => part / 255)
      .map((part) => (part <= 0.04045 ? part / 12.92 : Math.pow((part + 0.055) / 1.055, 2.4)));
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const behind = (one) => {
    for (let at = one; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (colour !== "rgba(0, 0, 0, 0)") return colour;
    }
  };
  const poor = [];
  for (const one of document.querySelectorAll("body *")) {
    if (one.children.length || !one.textContent.trim() || !one.offsetHeight || one.closest("script")) continue;
    const [a, b] = [light(getComputedStyle(one).color), light(behind(one))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) poor.push([one.className, one.textContent, (a + 0.05) / (b + 0.05)]);
  }
  return poor;
})()"""


def test_page_recovers_when_the_server_comes_back(browser, serve):
    board = Board()
    sink = serve(status=board.status, history=board.history)
    with Feed() as feed, opened(browser, sink) as page:
        feed.sink = sink
        shows(page, "red")
        page.wait("document.getElementById('link').dataset.state === 'live'")
        feed.sink, port = None, sink.port
        sink.close()
        page.wait("document.getElementById('link').dataset.state === 'lost'")
        assert "does not answer" in page.evaluate("document.getElementById('note').textContent")
        assert page.evaluate("'stale' in document.body.dataset")
        again = serve(f"mjpeg://127.0.0.1:{port}", status=board.status, history=board.history)
        feed.colour, feed.sink = "green", again
        shows(page, "green")
        page.wait("document.getElementById('link').dataset.state === 'live'")
        assert not page.evaluate("'stale' in document.body.dataset")
        assert page.evaluate("document.getElementById('note').textContent") == ""
        # only what the browser itself says of a server that is away
        assert all("ERR_CONNECTION" in problem or "ERR_INCOMPLETE" in problem or "ERR_EMPTY" in problem
                   for problem in page.problems())  # fmt: skip


def test_stream_that_was_cut_is_asked_for_again(browser, serve):
    board = Board()
    sink = serve(status=board.status)
    with Feed() as feed, opened(browser, sink) as page:
        feed.sink = sink
        shows(page, "red")
        page.evaluate("patience = 1")
        with sink._server._lock:  # the stream ends, as after a night's sleep, and no event says so
            for connection in sink._server._connections:
                connection.shutdown(socket.SHUT_RDWR)
        feed.colour = "blue"
        shows(page, "blue")


def test_no_room_for_a_viewer_is_one_picture_a_second(browser, serve):
    board = Board()
    sink = serve(status=board.status, max_clients=1)
    viewer = Viewer(sink)
    with Feed() as feed, opened(browser, sink) as page:
        feed.sink = sink
        page.wait("document.getElementById('note').textContent.includes('one picture a second')")
        for colour in ("green", "red"):
            feed.colour = colour
            shows(page, colour)
    viewer.close()
