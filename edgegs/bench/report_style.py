"""The report page's style sheet: light and dark, desktop and phone, and paper."""

from __future__ import annotations

STYLE = """
:root {
  --bg: #f6f7f8; --sheet: #ffffff; --fg: #1b2126; --soft: #5b6670; --grid: #dde2e6; --line: #e6e9ec;
  --s1: #2f6fde; --s2: #e08a00; --s3: #1d9a6c; --s4: #c2418c; --s5: #7a56d6; --s6: #0c9bb3; --s7: #9a6b30;
  --s8: #9aa5ae; --hot: #e0402b; --mark: #5b6670; --bad: #fdecea; --warn: #fff5dd;
  --font: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
@media (prefers-color-scheme: dark) {
  :root {
    --bg: #101417; --sheet: #181d21; --fg: #e7ecf0; --soft: #9aa6b0; --grid: #323a41; --line: #283037;
    --s1: #6ea2ff; --s2: #f3b13f; --s3: #4cc79a; --s4: #ee79ba; --s5: #a98bff; --s6: #4fc8dd; --s7: #c89b62;
    --s8: #6d7881; --hot: #ff6a55; --mark: #9aa6b0; --bad: #3a1d1a; --warn: #352b12;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--bg); color: var(--fg); font: 15px/1.5 var(--font);
  -webkit-text-size-adjust: 100%; }
main { max-width: 1080px; margin: 0 auto; padding: 28px 20px 40px; }
h1 { font-size: 28px; line-height: 1.2; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 24px; line-height: 1.2; margin: 0; overflow-wrap: anywhere; }
h1 + .part { margin: 18px 0 40px; }
h3 { font-size: 15px; margin: 0 0 6px; }
.run + .run { margin-top: 48px; padding-top: 32px; border-top: 2px solid var(--grid); }
.kicker { margin: 0 0 4px; color: var(--soft); font-size: 13px; letter-spacing: .02em;
  font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.sub { margin: 4px 0 0; color: var(--soft); overflow-wrap: anywhere; }
.cards { display: grid; gap: 12px; margin: 20px 0;
  grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); }
.card, figure, .part, details {
  background: var(--sheet); border: 1px solid var(--line); border-radius: 10px; }
.card { padding: 12px 14px; min-width: 0; }
.card b { display: block; font-weight: 500; font-size: 13px; color: var(--soft); }
.card strong { display: block; font-size: 25px; font-weight: 650; line-height: 1.3;
  font-variant-numeric: tabular-nums; white-space: nowrap; }
.card span { display: block; font-size: 12.5px; color: var(--soft); overflow-wrap: anywhere; }
.box { margin: 12px 0; padding: 10px 14px; border-left: 4px solid var(--s2); border-radius: 6px;
  background: var(--warn); overflow-wrap: anywhere; }
.box.bad { border-color: var(--hot); background: var(--bad); }
.box p { margin: 2px 0; }
.key { margin: 18px 2px 8px; color: var(--soft); font-size: 13px; }
.key span { display: inline-block; vertical-align: -2px; width: 16px; height: 14px; margin-right: 6px; }
.key .hot { background: var(--hot); opacity: .3; }
.key .mark { width: 0; border-left: 2px dotted var(--mark); }
figure { margin: 0 0 14px; padding: 14px 14px 6px; }
figcaption { font-weight: 600; display: flex; flex-wrap: wrap; gap: 4px 20px; align-items: baseline;
  justify-content: space-between; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 14px; margin: 0; padding: 0; list-style: none;
  font-weight: 400; font-size: 13px; color: var(--soft); }
.legend li { overflow-wrap: anywhere; }
.legend i { display: inline-block; width: 14px; height: 0; margin-right: 6px; vertical-align: 3px;
  border-top: 3px solid var(--c); }
.legend i.area { height: 11px; border: 0; border-radius: 2px; background: var(--c); vertical-align: -1px; }
.legend i.dash { border-top: 2px dashed var(--c); }
figure svg { display: block; width: 100%; height: auto; overflow: visible; }
figure svg * { stroke-linejoin: round; stroke-linecap: butt; }
figure svg text { font-family: var(--font) !important; font-variant-numeric: tabular-nums; }
.narrow { display: none; }
.part { padding: 14px; margin: 0 0 14px; min-width: 0; }
.columns { display: grid; gap: 14px; grid-template-columns: repeat(2, minmax(0, 1fr)); margin-bottom: 14px; }
.columns .part { margin: 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { font-weight: 500; font-size: 13px; color: var(--soft); }
th, td { text-align: right; padding: 5px 0 5px 14px; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
tbody tr:last-child td { border-bottom: 0; }
.words th, .words td { text-align: left; }
.words td { vertical-align: top; }
.words td:last-child { white-space: normal; overflow-wrap: anywhere; }
.facts thead { display: none; }
.facts td:first-child { color: var(--soft); }
.second-is-words td:nth-child(2), .second-is-words th:nth-child(2) { text-align: left; white-space: normal; }
small { color: var(--soft); }
.bar { display: inline-block; width: 90px; height: 9px; margin-right: 10px; border-radius: 2px;
  background: linear-gradient(to right, var(--s1) var(--p), var(--line) var(--p)); }
.pc { display: inline-block; min-width: 64px; }
.note, .absent { margin: 8px 0 0; color: var(--soft); font-size: 13px; overflow-wrap: anywhere; }
details { margin: 0 0 14px; }
summary { padding: 12px 14px; cursor: pointer; font-weight: 600; }
details .part { border: 0; }
a { color: var(--s1); }
code { overflow-wrap: anywhere; }
footer { margin-top: 28px; color: var(--soft); font-size: 13px; }
@media (max-width: 700px) {
  main { padding: 20px 12px 28px; }
  h1 { font-size: 23px; }
  .cards { grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 8px; }
  .card strong { font-size: 21px; }
  .columns { grid-template-columns: minmax(0, 1fr); }
  .wide { display: none; }
  .narrow { display: block; }
  figure { padding: 12px 8px 4px; }
  figcaption { padding: 0 4px; }
  .part { padding: 12px; }
  table { font-size: 13px; }
  th { font-size: 12px; }
  th, td { padding-left: 7px; }
  .third-is-extra td:nth-child(3), .third-is-extra th:nth-child(3) { display: none; }
  .bar { display: none; }
}
@media print {
  body { background: none; }
  main { max-width: none; padding: 0; }
  figure, .part, .card { break-inside: avoid; }
}
"""
