/**
 * A chart of received and sent tokens per request, with the thresholds as lines and the changes as marks.
 *
 * uPlot draws on a canvas, which screen readers cannot see: `requests.js` has the same numbers as a table.
 */

import { html, useEffect, useRef, useState } from "../vendor/htm-preact.js";
import { CHANGES } from "./changes.js";
import { readColours, watchColours } from "./colours.js";
import { formatCount, formatNumberOf, formatTime, formatTokens } from "./format.js";

const HEIGHT = 260;
const NARROW_HEIGHT = 200;
const NARROW_WIDTH = 600;
// Below this share of the soft threshold the thresholds would press the curves to the floor, and are left out.
const LINES_FROM_SHARE = 0.25;
const MARK_SIZE = 14;

export function Chart({ points, leftOff }) {
  const frame = useRef(null);
  const chart = useRef(null);
  const [hovered, setHovered] = useState(null);
  const showsLines = wantsLines(points);
  const data = { points, leftOff };
  const newest = useRef(data);
  newest.current = data;

  useEffect(() => {
    const draw = () => {
      chart.current?.destroy();
      chart.current = makeChart(frame.current, newest, showsLines, setHovered);
    };
    draw();
    const resize = new ResizeObserver(() => chart.current.setSize(measure(frame.current)));
    resize.observe(frame.current);
    const unwatch = watchColours(draw);
    return () => {
      unwatch();
      resize.disconnect();
      chart.current.destroy();
      chart.current = null;
    };
  }, [showsLines]);
  useEffect(() => chart.current?.setData(makeColumns(data, showsLines)), [points, showsLines]);

  return html`<figure class="chart">
    <figcaption>
      <${Legend} points=${points} showsLines=${showsLines} />
    </figcaption>
    <div class="plot" ref=${frame} role="img" aria-label=${describe(points, leftOff)}></div>
    <p class="readout" aria-hidden="true">${hovered === null ? " " : describePoint(points[hovered])}</p>
  </figure>`;
}

function Legend({ points, showsLines }) {
  const last = points[points.length - 1];
  const found = Object.entries(CHANGES).filter(([change]) => points.some((point) => point.change === change));
  return html`<ul class="legend">
    <li><span class="key received"></span>Received from the client</li>
    <li><span class="key sent"></span>Sent to the model</li>
    ${last.soft && html`<li>${showsLines && html`<span class="key soft"></span>`}Soft threshold ${formatTokens(last.soft)}</li>`}
    ${last.hard && html`<li>${showsLines && html`<span class="key hard"></span>`}Hard threshold ${formatTokens(last.hard)}</li>`}
    ${last.soft && !showsLines && html`<li class="muted">(thresholds are above the chart)</li>`}
    ${found.map(([change, { name, sign }]) => html`<li key=${change}><span class="mark ${change}">${sign}</span>${name}</li>`)}
  </ul>`;
}

const largest = (points, name) => points.reduce((most, point) => Math.max(most, point[name] ?? 0), 0);

function wantsLines(points) {
  const soft = largest(points, "soft");
  return soft > 0 && Math.max(largest(points, "received"), largest(points, "sent")) >= LINES_FROM_SHARE * soft;
}

/** Requests are counted from the first one, also if the oldest are left off. A threshold of 0 is none. */
function makeColumns({ points, leftOff }, showsLines) {
  const column = (name) => points.map((point) => point[name] || null);
  const columns = [points.map((_, index) => leftOff + index + 1), column("received"), column("sent")];
  return showsLines ? [...columns, column("soft"), column("hard")] : columns;
}

const measure = (frame) => ({
  width: Math.max(200, frame.clientWidth),
  height: frame.clientWidth < NARROW_WIDTH ? NARROW_HEIGHT : HEIGHT,
});

function makeChart(frame, newest, showsLines, setHovered) {
  const colours = readColours();
  const axis = { stroke: colours.muted, grid: { stroke: colours.grid, width: 1 }, ticks: { show: false }, font: "12px system-ui" };
  const line = (label, stroke, more) => ({ label, stroke, width: 2, points: { show: false }, ...more });
  const series = [
    {},
    line("Received", colours.received, { fill: colours.receivedFill, width: 1.5 }),
    line("Sent", colours.sent),
    ...(showsLines
      ? [line("Soft", colours.soft, { dash: [6, 4], width: 1.5 }), line("Hard", colours.hard, { dash: [2, 3], width: 1.5 })]
      : []),
  ];
  const options = {
    ...measure(frame),
    series,
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 } },
    scales: { x: { time: false, range: (_, low, high) => [low, Math.max(high, low + 1)] }, y: { range: (_, __, high) => [0, (high || 1) * 1.12] } },
    axes: [
      { ...axis, size: 28, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000], grid: { show: false } },
      { ...axis, size: 52, values: (_, values) => values.map(formatTokens) },
    ],
    hooks: {
      draw: [(plot) => drawMarks(plot, newest.current, colours)],
      setCursor: [(plot) => setHovered(plot.cursor.idx ?? null)],
    },
  };
  return new globalThis.uPlot(options, makeColumns(newest.current, showsLines), frame);
}

/** A line and a boxed letter for each change, so that colour alone does not tell them apart. */
function drawMarks(plot, { points, leftOff }, colours) {
  const { ctx, bbox } = plot;
  const ratio = devicePixelRatio;
  const size = MARK_SIZE * ratio;
  ctx.save();
  ctx.font = `600 ${10 * ratio}px system-ui`;
  ctx.textAlign = "center";
  ctx.textBaseline = "middle";
  points.forEach((point, index) => {
    const change = CHANGES[point.change];
    if (!change) return;
    const x = plot.valToPos(leftOff + index + 1, "x", true);
    const colour = colours.marks[point.change];
    ctx.strokeStyle = ctx.fillStyle = colour;
    ctx.lineWidth = ratio;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top + size);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.fillRect(x - size / 2, bbox.top, size, size);
    ctx.fillStyle = colours.surface;
    ctx.fillText(change.sign, x, bbox.top + size / 2 + ratio / 2);
  });
  ctx.restore();
}

/** What the picture shows, in two sentences. */
function describe(points, leftOff) {
  const last = points[points.length - 1];
  const counted = Object.entries(CHANGES)
    .map(([change, words]) => [points.filter((point) => point.change === change).length, words])
    .filter(([count]) => count > 0)
    .map(([count, { name, plural }]) => `${formatCount(count)} ${(count === 1 ? name : plural).toLowerCase()}`);
  const lines = last.soft ? ` The soft threshold is ${formatCount(last.soft)}, the hard one ${formatCount(last.hard)}.` : "";
  const changes = counted.length ? ` Marked: ${counted.join(", ")}.` : "";
  return `Chart of ${formatNumberOf(points.length + leftOff, "request")}. The newest one was received with ${formatCount(last.received)} ` +
    `tokens and sent with ${formatCount(last.sent)}.${lines}${changes} The table below has the numbers.`;
}

function describePoint(point) {
  if (!point) return " ";
  const change = CHANGES[point.change];
  return `${formatTime(point.at)} · ${formatCount(point.received)} received · ${formatCount(point.sent)} sent · ${point.plan}` +
    (change ? ` · ${change.name}: ${change.note}` : "");
}
