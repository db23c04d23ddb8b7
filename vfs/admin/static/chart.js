// Stacked areas over the last two minutes, as SVG: no library. Pointer and arrow keys read single seconds.

import { svg } from "/page/nodes.js";

const SPAN_S = 120;
const WIDTH = 600, HEIGHT = 150, TOP = 8;

export class Chart {
  // `colours`: name -> class; `format`: number -> text.
  constructor(place, { label, colours, format }) {
    this.place = place;
    this.colours = colours;
    this.format = format;
    this.points = [];
    this.at = null;
    this.picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", tabindex: "0" });
    this.label = label;
    this.top = document.createElement("p");
    this.top.className = "note";
    this.legend = document.createElement("ul");
    this.legend.className = "legend";
    place.replaceChildren(this.top, this.picture, this.legend);
    this.picture.addEventListener("pointermove", (event) => {
      const box = this.picture.getBoundingClientRect();
      this.point((event.clientX - box.left) / box.width);
    });
    this.picture.addEventListener("pointerleave", () => this.point(null));
    this.picture.addEventListener("blur", () => this.point(null));
    this.picture.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step || !this.points.length) return;
      event.preventDefault();
      const from = this.at === null ? this.points.length : this.at;
      this.at = Math.max(0, Math.min(this.points.length - 1, from + step));
      this.draw();
    });
  }

  // `points`: {at_s, values: {name: number per second}}, oldest first.
  show(points) {
    this.points = points;
    if (this.at !== null) this.at = Math.min(this.at, points.length - 1);
    this.draw();
  }

  point(share) {
    this.at = null;
    if (share !== null && this.points.length) {
      const wanted = this.end() - SPAN_S * (1 - share);
      this.points.forEach((point, index) => {
        if (this.at === null || Math.abs(point.at_s - wanted) < Math.abs(this.points[this.at].at_s - wanted)) this.at = index;
      });
    }
    this.draw();
  }

  end() {
    return this.points.length ? this.points[this.points.length - 1].at_s : 0;
  }

  draw() {
    const names = Object.keys(this.colours).filter((name) => this.points.some((point) => point.values[name] > 0));
    const sums = this.points.map((point) => names.reduce((sum, name) => sum + (point.values[name] || 0), 0));
    const highest = Math.max(...sums, 0);
    const scale = highest || 1;
    const x = (point) => WIDTH * (1 - (this.end() - point.at_s) / SPAN_S);
    const y = (value) => HEIGHT - ((HEIGHT - TOP) * value) / scale;
    const parts = [0, 0.5, 1].map((share) =>
      svg("line", { class: "grid", x1: 0, x2: WIDTH, y1: y(share * scale), y2: y(share * scale) }));
    const floor = this.points.map(() => 0);
    for (const name of names) {
      const upper = this.points.map((point, index) => `${x(point).toFixed(1)},${y(floor[index] + (point.values[name] || 0)).toFixed(1)}`);
      const lower = this.points.map((point, index) => `${x(point).toFixed(1)},${y(floor[index]).toFixed(1)}`).reverse();
      parts.push(svg("polygon", { class: this.colours[name], points: [...upper, ...lower].join(" "), "fill-opacity": "0.85" }));
      this.points.forEach((point, index) => { floor[index] += point.values[name] || 0; });
    }
    const shown = this.at === null ? this.points.length - 1 : this.at;
    if (this.at !== null) {
      const at = x(this.points[this.at]);
      parts.push(svg("line", { class: "cursor", x1: at, x2: at, y1: 0, y2: HEIGHT }));
    }
    this.picture.replaceChildren(...parts);
    this.top.textContent = highest ? `up to ${this.format(highest)} in the last two minutes` : "nothing in the last two minutes";
    const point = this.points[shown];
    const read = names.map((name) => [name, point ? point.values[name] || 0 : 0]);
    this.legend.replaceChildren(...read.map(([name, value]) => {
      const row = document.createElement("li"), swatch = document.createElement("span");
      swatch.className = `swatch ${this.colours[name]}`;
      row.append(swatch, `${name} ${this.format(value)}`);
      return row;
    }));
    if (point) {
      const time = document.createElement("li");
      time.className = "time";
      time.textContent = this.at === null ? "now" : new Date(point.at_s * 1000).toLocaleTimeString();
      this.legend.append(time);
    }
    const told = read.filter(([, value]) => value > 0).map(([name, value]) => `${name} ${this.format(value)}`).join(", ");
    this.picture.setAttribute("aria-label", `${this.label}; ${told || "nothing"}. Arrow keys read single seconds.`);
  }
}
