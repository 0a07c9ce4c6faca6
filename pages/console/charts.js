// Charts of sums over time: lines that share one cursor. A cell without a call is zero; a part of the time in which the
// gateway was away cannot be told from one without calls.

import uPlot from "./uplot.js";
import { element } from "./dom.js";
import { moment, took } from "./show.js";

/** The height of a chart, in pixels. */
const HEIGHT = 150;

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** One value as the axis and the reader have it. */
const said = { rate: (value) => (value === null ? "–" : String(Number(value.toPrecision(2)))), ms: (value) => (value === null ? "–" : took(Math.round(value))) };

/**
 * A chart: `{ element, show, close }`. `lines`: `{ label, tone, dash }`; `unit`: of `said`; `show(x, lines)` takes seconds
 * since 1970 and a list of numbers for each line.
 */
export function chart({ title, unit, lines }) {
  const place = element("div", { className: "plot" });
  const legend = element("p", { className: "small legend", "aria-live": "off" });
  const box = element("figure", { className: "panel chart", "aria-label": title }, element("figcaption", {}, element("h2", {}, title), legend), place);
  let plot = null;
  let data = null;

  /** What the cursor is at, or the whole time. */
  function told(index) {
    const parts = lines.map(({ label, tone }, at) => {
      const values = data?.[at + 1] ?? [];
      const value = index === null || index === undefined ? null : values[index];
      const text = index === null || index === undefined ? label : `${label} ${said[unit](value ?? null)}`;
      return element("span", { className: "line", "data-tone": tone }, text);
    });
    const at = index === null || index === undefined || !data ? [] : [element("span", {}, moment(data[0][index] * 1000))];
    legend.replaceChildren(...at, ...parts);
  }

  function make() {
    plot?.destroy();
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
    const series = lines.map(({ label, tone, dash }) => ({ label, stroke: colour(`--${tone}`), width: 1.5, dash, points: { show: unit === "ms", size: 3, fill: colour(`--${tone}`) } }));
    const times = (_, values) => values.map((value) => moment(value * 1000, false));
    const options = {
      width: Math.max(200, place.clientWidth || 300),
      height: HEIGHT,
      legend: { show: false },
      cursor: { sync: { key: "time" }, drag: { x: true, y: false }, points: { size: 6 } },
      scales: { y: { range: (_, low, high) => [0, Math.max(high || 0, unit === "ms" ? 10 : 0.1) * 1.1] } },
      axes: [{ ...axis, values: times, space: 90, size: 28 }, { ...axis, size: 56, values: (_, values) => values.map(said[unit]) }],
      series: [{}, ...series],
      hooks: { setCursor: [({ cursor }) => told(cursor.idx)] },
    };
    plot = new uPlot(options, data, place);
  }

  const resized = new ResizeObserver(() => plot && place.clientWidth > 0 && plot.setSize({ width: place.clientWidth, height: HEIGHT }));
  resized.observe(place);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const recolour = () => data && make();
  dark.addEventListener("change", recolour);
  told(null);
  return {
    element: box,
    show(x, values) {
      data = [x, ...values];
      if (plot) plot.setData(data);
      else make();
    },
    close() {
      resized.disconnect();
      dark.removeEventListener("change", recolour);
      plot?.destroy();
    },
  };
}
