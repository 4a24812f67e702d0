"use strict";
const STAGES = ["project", "duplicate", "sort", "ranges", "rasterize"];
const token = new URLSearchParams(location.search).get("token");
const $ = (id) => document.getElementById(id);

function address(path, extra) {
  const query = new URLSearchParams(extra || {});
  if (token) query.set("token", token);
  const text = query.toString();
  return text ? path + "?" + text : path;
}
function number(value, digits) {
  return typeof value === "number" && isFinite(value) ? value.toFixed(digits) : "–";
}
const ms = (value) => number(value, value < 9.995 ? 2 : 1);
const count = (value) => (typeof value === "number" ? value.toLocaleString("en-US") : "–");
function show(id, visible) { $(id).hidden = !visible; }

/* Rows are made once and then only updated: the page runs for weeks. */
function rowOf(parent, key, make) {
  for (const row of parent.children) if (row.dataset.key === key) return row;
  const row = make();
  row.dataset.key = key;
  parent.append(row);
  return row;
}
function dropOthers(parent, keys) {
  for (const row of [...parent.children]) if (!keys.includes(row.dataset.key)) row.remove();
}
function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function svgElement(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const key of Object.keys(attributes || {})) made.setAttribute(key, attributes[key]);
  return made;
}

/* The last minutes: rows of {t, fps, power, temp}, t in the server's monotonic seconds. */
const past = { run: null, rows: [], now: 0, span: 600, total: null };
function remember(row) {
  past.rows.push(row);
  while (past.rows.length && past.rows[0].t < past.now - past.span) past.rows.shift();
}
/* x is the share of the span, 0 to 600; a gap in time is a gap in the line. */
function linePath(valueOf, yOf) {
  const rows = past.rows, n = rows.length;
  const gap = n > 1 ? 2 + 3 * (rows[n - 1].t - rows[0].t) / (n - 1) : 0;
  let path = "", before = null;
  for (const row of rows) {
    const value = valueOf(row);
    if (typeof value !== "number") { before = null; continue; }
    const x = 600 * (1 - (past.now - row.t) / past.span);
    path += (before === null || row.t - before > gap ? "M" : "L") + x.toFixed(1) + " " + yOf(value).toFixed(1);
    before = row.t;
  }
  return path;
}

/* Round steps that part low to high into at most five. */
function scale(low, high) {
  const rough = (high - low) / 4, ten = Math.pow(10, Math.floor(Math.log10(rough)));
  const step = ten * [1, 2, 5, 10].find((factor) => factor * ten >= rough);
  const first = Math.floor(low / step + 1e-9), last = Math.ceil(high / step - 1e-9);
  const ticks = [];
  for (let index = first; index <= last; index += 1) ticks.push(index * step);
  return { low: first * step, high: last * step, ticks, digits: Math.max(0, -Math.floor(Math.log10(step) + 1e-9)) };
}

const DASHES = ["", "7 3", "2 3"];          // behind the sixth line a colour comes again, dashed
function drawChart(id, key, title, unit, digits, fromZero) {
  const names = [];
  for (const row of past.rows) for (const name of Object.keys(row[key])) if (!names.includes(name)) names.push(name);
  names.sort((one, other) => (other === past.total) - (one === past.total));
  show(id, names.length > 0);
  if (!names.length) return;
  const section = $(id);
  if (!section.querySelector(".plot")) {
    const plot = element("div", "plot");
    plot.append(svgElement("svg", { viewBox: "0 0 600 100", preserveAspectRatio: "none", role: "img" }));
    section.append(plot, element("div", "legend"));
  }
  const values = {}, seen = [];
  for (const name of names) {
    values[name] = past.rows.map((row) => row[key][name]).filter((value) => typeof value === "number");
    seen.push(Math.min(...values[name]), Math.max(...values[name]));
  }
  let low = Math.min(...seen), high = Math.max(...seen);
  if (fromZero) { low = 0; high = Math.max(high, 0.1); }
  else if (high - low < 8) { low -= (8 - high + low) / 2; high = low + 8; }
  const axis = scale(low, high), plot = section.querySelector(".plot"), svg = plot.querySelector("svg");
  const yOf = (value) => 100 * (axis.high - value) / (axis.high - axis.low);
  svg.replaceChildren(...axis.ticks.map((tick) =>
    svgElement("path", { class: "grid", d: "M0 " + yOf(tick).toFixed(1) + "H600" })));
  for (const label of plot.querySelectorAll("span")) label.remove();
  for (const [share, text] of [[0, "−" + duration(past.span)], [0.5, "−" + duration(past.span / 2)], [1, "now"]]) {
    const label = element("span", share === 1 ? "x last" : "x", text);
    label.style.left = 100 * share + "%";
    plot.append(label);
  }
  for (const tick of axis.ticks) {
    const label = element("span", "y", tick.toFixed(axis.digits));
    label.style.top = yOf(tick) + "%";
    plot.append(label);
  }
  const legend = section.querySelector(".legend"), said = [];
  const latest = past.rows[past.rows.length - 1][key];
  names.forEach((name, index) => {
    const main = name === past.total;
    const line = svgElement("path", { class: main ? "line main" : "line", d: linePath((row) => row[key][name], yOf) });
    line.style.stroke = "var(--c" + index % 6 + ")";
    line.style.strokeDasharray = DASHES[Math.floor(index / 6) % 3];
    svg.append(line);
    const entry = rowOf(legend, name, () => {
      const made = element("div", "entry"), mark = svgElement("svg", { viewBox: "0 0 24 10", "aria-hidden": "true" });
      mark.append(svgElement("path", { d: "M0 5H24" }));
      made.append(mark, element("span", "name", name), element("span", "value"), element("span", "peak"));
      made.title = name;
      return made;
    });
    const mark = entry.querySelector("path");
    mark.style.stroke = line.style.stroke;
    mark.style.strokeDasharray = line.style.strokeDasharray;
    mark.style.strokeWidth = main ? 4 : 2.5;
    const peak = number(Math.max(...values[name]), digits);
    entry.querySelector(".value").textContent = number(latest[name], digits);
    entry.querySelector(".peak").textContent = peak;
    said.push(name + " " + number(latest[name], digits) + " " + unit + ", highest " + peak);
  });
  dropOthers(legend, names);
  svg.setAttribute("aria-label", title + " over the last " + duration(past.span) + ": " + said.join("; "));
}

function drawPast() {
  const top = 1.05 * Math.max(1e-9, ...past.rows.map((row) => row.fps || 0));
  $("fps-trace").firstElementChild.setAttribute("d", linePath((row) => row.fps, (fps) => 98 - 96 * fps / top));
  drawChart("power", "power", "Power", "watts", 2, true);
  drawChart("temp", "temp", "Temperature", "degrees", 1, false);
}

function drawStages(stages) {
  const names = STAGES.filter((name) => stages[name]);
  show("stages-section", names.length > 0);
  const top = Math.max(1e-6, ...names.map((name) => stages[name].p95 || stages[name].p50 || 0));
  const sum = names.reduce((total, name) => total + (stages[name].p50 || 0), 0) || 1;
  show("tick-key", names.some((name) => stages[name].p95));
  for (const name of names) {
    const share = rowOf($("whole"), name, () => element("i"));
    share.style.background = "var(--" + name + ")";
    share.style.width = 100 * (stages[name].p50 || 0) / sum + "%";
    const row = rowOf($("stages"), name, () => {
      const made = element("div", "row stage"), bar = element("div", "bar");
      made.setAttribute("role", "listitem");
      bar.append(element("i"), element("u"));
      made.append(element("span", "name", name), bar, element("span", "value"));
      return made;
    });
    const [fill, tick] = row.querySelector(".bar").children;
    fill.style.background = "var(--" + name + ")";
    fill.style.width = 100 * (stages[name].p50 || 0) / top + "%";
    tick.hidden = !stages[name].p95;
    tick.style.left = "calc(" + 100 * (stages[name].p95 || 0) / top + "% - 2px)";
    row.querySelector(".value").textContent = ms(stages[name].p50);
  }
  dropOthers($("whole"), names);
  dropOthers($("stages"), names);
}

/* A row with a name, a state, a line of detail and an error: what outputs and inputs look like. */
function partRow(parent, key) {
  return rowOf(parent, key, () => {
    const made = element("div", "output");
    made.setAttribute("role", "listitem");
    made.append(...["uri", "state", "detail", "error"].map((name) => element("span", name)));
    return made;
  });
}

function drawInputs(camera, background) {
  const inputs = [];
  if (camera && camera.link) inputs.push([camera.source, camera.link, camera.state, camera.last_error]);
  if (background) inputs.push([background.uri, background.state, count(background.frames) + " pictures", background.last_error]);
  show("inputs-section", inputs.length > 0);
  for (const [name, link, words, fault] of inputs) {
    const [uri, state, detail, error] = partRow($("inputs"), name).children;
    uri.textContent = uri.title = name;
    state.textContent = state.dataset.state = link;
    detail.textContent = words || "";
    error.textContent = fault || "";
  }
  dropOthers($("inputs"), inputs.map((input) => input[0]));
}

function drawOutputs(outputs) {
  show("outputs-section", outputs.length > 0);
  const keys = outputs.map((output, index) => index + " " + output.uri);
  outputs.forEach((output, index) => {
    const row = partRow($("outputs"), keys[index]);
    const [uri, state, detail, error] = row.children;
    uri.textContent = output.name || output.uri;
    uri.title = output.uri;
    state.textContent = output.state;
    state.dataset.state = output.state;
    detail.replaceChildren(...[
      output.required && "required",
      count(output.frames_written) + " written",
      ...Object.entries(output.dropped || { dropped: output.frames_dropped })
        .filter((drop) => drop[1] > 0)
        .map((drop) => count(drop[1]) + (drop[0] === "dropped" ? " dropped" : " dropped: " + drop[0])),
      output.reconnects > 0 && count(output.reconnects) + (output.reconnects === 1 ? " reconnect" : " reconnects"),
      output.state !== "up" && typeof output.last_write_age_s === "number"
        && "last frame " + duration(output.last_write_age_s) + " ago",
    ].filter(Boolean).flatMap((text) => [element("small", "", text), " "]));
    error.textContent = output.last_error || "";
  });
  dropOthers($("outputs"), keys);
}

function duration(seconds) {
  const minutes = Math.floor(seconds / 60), hours = Math.floor(minutes / 60), days = Math.floor(hours / 24);
  if (days) return days + " d " + (hours % 24) + " h";
  if (hours) return hours + " h " + (minutes % 60) + " min";
  return minutes ? minutes + " min" : Math.floor(seconds) + " s";
}

function draw(status) {
  const frame = status.frame_ms || {};
  $("fps").textContent = number(status.fps, status.fps < 99.95 ? 1 : 0);
  $("frame-ms").textContent = ms(frame.p50);
  $("frame-tail").textContent = typeof frame.p95 === "number"
    ? "p95 " + ms(frame.p95) + (typeof frame.max === "number" ? " · max " + ms(frame.max) : "") : "";
  drawStages(status.stages || {});
  for (const id of ["n_splats", "n_visible", "n_instances"]) $(id).textContent = count(status[id]);
  show("counts-section", status.n_splats > 0);
  const throttle = status.throttle || [];
  show("throttle", throttle.length > 0);
  $("throttle").textContent = "Throttled: " + throttle.join(", ");
  drawOutputs(Array.isArray(status.outputs) ? status.outputs : []);
  drawInputs(status.camera, status.background);
  $("scene").textContent = status.scene ? String(status.scene).split("/").pop() : "";
  $("scene").title = status.scene || "";
  if (status.width && status.height) { picture.width = status.width; picture.height = status.height; }
  $("foot").replaceChildren(...[
    status.backend && "backend " + status.backend,
    status.variant && "variant " + status.variant,
    status.width && status.height && status.width + "×" + status.height,
    typeof status.frames === "number" && count(status.frames) + " frames",
    typeof status.uptime_s === "number" && "up " + duration(status.uptime_s),
    status.log && (status.log.state === "ok" ? "run log kept" : "run log failing: " + status.log.error),
  ].filter(Boolean).map((text) => element("span", "", text)));
  document.title = number(status.fps, 1) + " FPS · edgegs";
}

/* The picture: the stream; one picture a second when the server has no room for another viewer. */
const picture = $("stream");
let fallback = 0;
function startStream() {
  clearInterval(fallback);
  fallback = 0;
  $("note").textContent = "";
  picture.src = address("/stream.mjpg", { n: Date.now() });
}
function stopStream() {
  clearInterval(fallback);
  fallback = 0;
  picture.removeAttribute("src");
}
picture.addEventListener("error", () => {
  if (fallback || document.hidden) return;
  let seconds = 0;
  fallback = setInterval(() => {
    seconds += 1;
    if (seconds % 15 === 0) startStream();
    else picture.src = address("/snapshot.jpg", { n: Date.now() });
  }, 1000);
});
picture.addEventListener("load", () => {
  if (fallback) $("note").textContent = "No room for another live viewer: one picture a second";
});
document.addEventListener("visibilitychange", () => (document.hidden ? stopStream() : startStream()));

/* No event tells when a stream has ended: it has when the picture stands still while frames are counted. A scene that
   stands still looks the same, so it is tried less and less often. */
const probe = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
probe.canvas.width = probe.canvas.height = 24;
let lastLook = "", sameFor = 0, patience = 6;
function watchPicture(moving) {
  if (fallback || document.hidden) return;
  let look = "";
  if (picture.naturalWidth) {                // else it is broken, and stays so
    probe.drawImage(picture, 0, 0, 24, 24);
    look = probe.getImageData(0, 0, 24, 24).data.join();
  }
  sameFor = moving && look === lastLook ? sameFor + 1 : 0;
  if (look !== lastLook) patience = 6;
  lastLook = look;
  if (sameFor >= patience) {
    sameFor = 0;
    patience = Math.min(2 * patience, 120);
    startStream();
  }
}

async function ask(path, extra) {
  const abort = new AbortController();
  const timer = setTimeout(() => abort.abort(), 4000);
  try {
    const answer = await fetch(address(path, extra), { signal: abort.signal, cache: "no-store" });
    if (!answer.ok) throw new Error(answer.status);
    return await answer.json();
  } finally {
    clearTimeout(timer);
  }
}

/* What the server remembers and this page does not know yet; without t where it remembers nothing. */
async function askPast() {
  const newest = past.rows[past.rows.length - 1];
  const told = await ask("/history", newest && { after: newest.t });
  return newest && told.t && told.run !== past.run ? ask("/history") : told;
}
function learn(told, status) {
  if (told.t) {
    if (told.run !== past.run) past.rows = [];
    past.run = told.run;
    past.now = told.now;
    past.span = told.span_s;
    past.total = told.total_rail;
    const pick = (columns, index) => Object.fromEntries(
      Object.entries(columns).map(([name, column]) => [name, column[index]]).filter((pair) => pair[1] !== null));
    told.t.forEach((t, index) => remember(
      { t, fps: told.fps[index], power: pick(told.power_w, index), temp: pick(told.temp_c, index) }));
  } else {
    past.now = performance.now() / 1000;
    remember({ t: past.now, fps: status.fps, power: status.power_w || {}, temp: status.temp_c || {} });
  }
  drawPast();
}

const POLLS_PER_LOOK_BACK = 2;
let lost = false, lastFrames = -1, stillFor = 0, polls = 0;
function link(state, text) {
  $("link").dataset.state = state;
  if ($("link").textContent !== text) $("link").textContent = text;   // it is read out when it changes
}
async function poll() {
  try {
    let status, told;
    const looksBack = polls % POLLS_PER_LOOK_BACK === 0;
    try {
      status = await ask("/status");
      if (looksBack) told = await askPast();
    } catch (error) {
      lost = true;
      polls = 0;
      document.body.dataset.stale = "";
      const refused = error.message === "401";
      link("lost", refused ? "token required" : "no answer");
      $("note").textContent = refused ? "Open this page with ?token=…" : "The server does not answer. Trying again.";
      return;
    }
    polls += 1;
    if (lost || status.frames < lastFrames) startStream();
    lost = false;
    delete document.body.dataset.stale;
    stillFor = status.frames === lastFrames ? stillFor + 1 : 0;
    lastFrames = status.frames;
    if (!(status.frames > 0)) link("wait", status.state || "waiting for the first frame");
    else if (stillFor >= 3) link("still", "no new frame for " + stillFor + " s");
    else if (status.not_ready) link("still", "not ready: " + status.not_ready);
    else link("live", "live");
    draw(status);
    if (looksBack) learn(told, status);
    watchPicture(stillFor === 0);
  } finally {
    setTimeout(poll, 1000);
  }
}
addEventListener("load", () => { startStream(); poll(); });  // not before: the page would never end loading
