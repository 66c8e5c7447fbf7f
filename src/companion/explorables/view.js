// A picture with coordinates: a canvas for fields, an SVG for lines, and above both the handles.
import { clamp, element, format, setAttributes } from "./dom.js";

const MARKS = {
  disc: (r) => `M${-r},0a${r},${r} 0 1 0 ${2 * r},0a${r},${r} 0 1 0 ${-2 * r},0z`,
  square: (r) => `M${-r},${-r}h${2 * r}v${2 * r}h${-2 * r}z`,
  diamond: (r) => `M0,${-1.3 * r}L${1.3 * r},0L0,${1.3 * r}L${-1.3 * r},0z`,
  triangle: (r) => `M0,${-1.2 * r}L${1.1 * r},${0.8 * r}L${-1.1 * r},${0.8 * r}z`,
  star: (r) =>
    `M${Array.from({ length: 10 }, (_, i) => {
      const [a, s] = [(i * Math.PI) / 5, i % 2 ? 0.6 * r : 1.5 * r];
      return `${(s * Math.sin(a)).toFixed(2)},${(-s * Math.cos(a)).toFixed(2)}`;
    }).join("L")}z`,
};

/** Four to seven round numbers from `low` to `high`. */
export function ticks(low, high) {
  const rough = (high - low) / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((m) => m * power >= rough * 0.99);
  const first = Math.ceil(low / step - 1e-9);
  const count = Math.floor(high / step + 1e-9) - first + 1;
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  return Array.from({ length: count }, (_, i) => [(first + i) * step, format((first + i) * step, digits)]);
}

/**
 * x, y: the window, [low, high] each.
 * equal: units of both axes alike (a plane); the window then grows on one side to fill the box.
 * axes: { x: label, y: label } draws ticks and names (a chart); xTicks, yTicks: [[value, text], ...]
 * where round numbers will not do. aspect: width / height of the box; narrow: the same on a phone.
 */
export function view(host, { x, y, equal = false, axes, aspect = 4 / 3, narrow = Math.max(1, Math.min(aspect, 1.1)), pad = axes ? { left: 46, right: 12, top: 12, bottom: 40 } : { left: 0, right: 0, top: 0, bottom: 0 }, redraw }) {
  const canvas = element("canvas", { "aria-hidden": "true" });
  const svg = element("svg", { role: "img" });
  const layer = element("div", { class: "mx-handles" });
  const box = element("div", { class: "mx-view", style: `--mx-aspect:${aspect};--mx-narrow:${narrow}` }, canvas, svg, layer);
  host.append(box);
  const grid = svg.appendChild(element("g", { class: "mx-axes" }));
  const self = { box, svg, layer, pad, width: 0, height: 0, x, y };

  const sides = () => [self.width - pad.left - pad.right, self.height - pad.top - pad.bottom];
  const fit = () => {
    const [w, h] = sides();
    if (!equal) return;
    const unit = Math.min(w / (x[1] - x[0]), h / (y[1] - y[0]));
    const around = ([low, high], side) => [(low + high - side / unit) / 2, (low + high + side / unit) / 2];
    self.x = around(x, w);
    self.y = around(y, h);
  };
  const drawAxes = () => {
    grid.replaceChildren();
    const [[l, t], [r, b]] = [self.px([self.x[0], self.y[1]]), self.px([self.x[1], self.y[0]])];
    const rule = (d, kind) => grid.append(element("path", { d, class: kind }));
    const say = (text, at) => grid.append(element("text", at, text));
    if (!axes) {
      const [ox, oy] = self.px([0, 0]);
      rule(`M${l},${oy}H${r}M${ox},${t}V${b}`, "mx-rule");
      return;
    }
    for (const [value, text] of axes.xTicks ?? ticks(...self.x)) {
      const [at] = self.px([value, 0]);
      rule(`M${at},${t}V${b}`, "mx-rule");
      say(text, { x: at, y: b + 16, "text-anchor": "middle" });
    }
    for (const [value, text] of axes.yTicks ?? ticks(...self.y)) {
      const [, at] = self.px([0, value]);
      rule(`M${l},${at}H${r}`, "mx-rule");
      say(text, { x: l - 6, y: at + 4, "text-anchor": "end" });
    }
    rule(`M${l},${t}V${b}H${r}`, "mx-frame");
    say(axes.x, { x: r, y: b + 33, "text-anchor": "end", class: "mx-name" });
    say(axes.y, { x: l + 6, y: t + 11, class: "mx-name" });
  };
  self.measure = () => {
    const { width, height } = box.getBoundingClientRect();
    if (!width || (width === self.width && height === self.height)) return;
    Object.assign(self, { width, height });
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    fit();
    drawAxes();
    redraw();
  };
  const watcher = new ResizeObserver(self.measure);
  watcher.observe(box);
  self.remove = () => watcher.disconnect();

  // Coordinates
  self.px = ([u, v]) => {
    const [w, h] = sides();
    return [
      pad.left + ((u - self.x[0]) / (self.x[1] - self.x[0])) * w,
      pad.top + ((self.y[1] - v) / (self.y[1] - self.y[0])) * h,
    ];
  };
  self.world = ([p, q]) => {
    const [w, h] = sides();
    return [
      self.x[0] + ((p - pad.left) / w) * (self.x[1] - self.x[0]),
      self.y[1] - ((q - pad.top) / h) * (self.y[1] - self.y[0]),
    ];
  };
  /** Where a pointer event is. */
  self.under = (event) => {
    const frame = box.getBoundingClientRect();
    return self.world([event.clientX - frame.left, event.clientY - frame.top]);
  };
  /** The nearest point that a handle may take: a plane keeps it whole. */
  self.inside = ([u, v]) => {
    const [w, h] = sides();
    const [a, b] = equal ? [(14 / w) * (self.x[1] - self.x[0]), (14 / h) * (self.y[1] - self.y[0])] : [0, 0];
    return [clamp(u, self.x[0] + a, self.x[1] - a), clamp(v, self.y[0] + b, self.y[1] - b)];
  };

  // Lines and marks; `look` is a list of words: a color (1, 2, 3, out, ink, soft) and how it is drawn
  // (dash, dot, thick, thin, fill).
  const classes = (look) => look.split(" ").filter(Boolean).map((word) => `mx-${word}`).join(" ");
  const draw = (tag, part, kind, look) =>
    svg.appendChild(element(tag, { class: `mx-${kind} ${classes(look)}`, "data-part": part }));
  /** SVG path through the points of a list. */
  self.path = (points) => `M${points.map((p) => self.px(p).map((c) => c.toFixed(1)).join(",")).join("L")}`;
  /** The ellipse at `radius` standard deviations around `mean`; `root` is a square root of the covariance. */
  self.ellipse = (mean, root, radius) =>
    self.path(
      Array.from({ length: 61 }, (_, i) => {
        const [u, v] = [radius * Math.cos((i * Math.PI) / 30), radius * Math.sin((i * Math.PI) / 30)];
        return [0, 1].map((j) => mean[j] + root[j][0] * u + root[j][1] * v);
      }),
    );
  /** A line: .set(d) takes what path, ellipse, zeroLine return. */
  self.line = (part, look) => {
    const node = draw("path", part, "line", look);
    return { node, set: (d) => node.setAttribute("d", d) };
  };
  /** A mark of a shape: .set(point, radius). */
  self.mark = (part, shape, look) => {
    const node = draw("path", part, "mark", look);
    return {
      node,
      set(point, radius = 7) {
        const [px, py] = self.px(point);
        setAttributes(node, { d: MARKS[shape](radius), transform: `translate(${px.toFixed(1)},${py.toFixed(1)})` });
      },
    };
  };
  /** An arrow: .set(from, to). Where there is no room for an arrow it is a dot. */
  self.arrow = (part, look) => {
    const shaft = draw("path", part, "line", `${look} thick`);
    const head = draw("path", part, "head", look);
    return {
      set(from, to) {
        const [p, q] = [self.px(from), self.px(to)];
        const length = Math.hypot(q[0] - p[0], q[1] - p[1]);
        const [c, s] = length ? [(q[0] - p[0]) / length, (q[1] - p[1]) / length] : [1, 0];
        const end = Math.max(length - 9, 0);
        shaft.setAttribute("d", `M${p}l${c * end},${s * end}`);
        head.setAttribute(
          "d",
          length < 12
            ? `M${q[0] - 4},${q[1]}a4,4 0 1 0 8,0a4,4 0 1 0 -8,0`
            : `M${q}l${-13 * c + 6 * s},${-13 * s - 6 * c}l${-12 * s},${12 * c}z`,
        );
      },
    };
  };
  self.label = (part, text, look = "ink") => {
    const node = draw("text", part, "label", look);
    node.textContent = text;
    return node;
  };
  /** Puts each label beside its point, where it covers least: a list of [label, point]. */
  self.placeLabels = (labels) => {
    const overlap = (a, b) =>
      Math.max(0, Math.min(a[2], b[2]) - Math.max(a[0], b[0])) * Math.max(0, Math.min(a[3], b[3]) - Math.max(a[1], b[1]));
    const taken = labels.map(([, point]) => self.px(point)).map(([p, q]) => [p - 11, q - 11, p + 11, q + 11]);
    for (const [node, point] of labels) {
      const [p, q] = self.px(point);
      const width = 7.6 * node.textContent.length;
      let best;
      const spots = [[p + 15, q - 9], [p - 15 - width, q + 20], [p + 15, q + 20], [p - 15 - width, q - 9], [p - width / 2, q + 31], [p - width / 2, q - 19]];
      for (const [left, base] of spots) {
        const area = [left, base - 13, left + width, base + 4];
        const outside = Math.max(0, 4 - area[0], 4 - area[1], area[2] - self.width + 4, area[3] - self.height + 4);
        const cost = taken.reduce((sum, other) => sum + overlap(area, other), 0) + 100 * outside;
        if (!best || cost < best.cost - 1) best = { cost, left, base, area };
      }
      taken.push(best.area);
      setAttributes(node, { x: best.left.toFixed(1), y: best.base.toFixed(1) });
    }
  };
  /**
   * Names a region: puts the label where `inside(x, y)` holds with the most room around, off the
   * points to `avoid`; hides it where there is no room. It stays while its place is good enough.
   */
  self.placeRegion = (node, inside, avoid = []) => {
    const [columns, rows] = [13, 11];
    const [half, rise] = [3.8 * node.textContent.length + 6, 14];
    const spots = [];
    for (let j = 0; j < rows; j++) {
      for (let i = 0; i < columns; i++) {
        const at = [((i + 0.5) / columns) * self.width, ((j + 0.5) / rows) * self.height];
        spots.push([at, inside(...self.world(at))]);
      }
    }
    const far = (a, b) => Math.max(Math.abs(a[0] - b[0]) / half, Math.abs(a[1] - b[1]) / rise / 2);
    const blocked = [...spots.filter(([, good]) => !good).map(([at]) => at), ...avoid.map(self.px)];
    const room = (at) =>
      at[0] < half || at[0] > self.width - half || at[1] < rise || at[1] > self.height - rise
        ? 0
        : Math.min(3, ...blocked.map((b) => far(at, b)));
    let best = [node.spot, node.spot && inside(...self.world(node.spot)) ? 1.3 * room(node.spot) : 0];
    for (const [at, good] of spots) if (good && room(at) > best[1]) best = [at, room(at)];
    node.spot = best[1] > 0.8 ? best[0] : undefined;
    node.style.display = node.spot ? "" : "none";
    if (node.spot) setAttributes(node, { x: node.spot[0].toFixed(0), y: (node.spot[1] + 5).toFixed(0), "text-anchor": "middle" });
  };

  // Fields
  /** Paints on a coarse grid that the browser smooths; `color(x, y, rgba)` fills in four numbers. */
  self.paint = (color, cell = 5) => {
    const [w, h] = sides();
    const [columns, rows] = [Math.max(2, Math.round(w / cell)), Math.max(2, Math.round(h / cell))];
    canvas.width = columns;
    canvas.height = rows;
    canvas.style.inset = `${pad.top}px ${pad.right}px ${pad.bottom}px ${pad.left}px`;
    Object.assign(canvas.style, { width: `${w}px`, height: `${h}px` });
    const context = canvas.getContext("2d");
    const image = context.createImageData(columns, rows);
    const rgba = [0, 0, 0, 0];
    for (let j = 0, at = 0; j < rows; j++) {
      const v = self.y[1] - ((j + 0.5) / rows) * (self.y[1] - self.y[0]);
      for (let i = 0; i < columns; i++, at += 4) {
        color(self.x[0] + ((i + 0.5) / columns) * (self.x[1] - self.x[0]), v, rgba);
        image.data.set(rgba, at);
      }
    }
    context.putImageData(image, 0, 0);
  };
  /** An empty canvas in pixels of the page, for thousands of marks; instead of `paint`. */
  self.ink = () => {
    const density = Math.min(devicePixelRatio || 1, 2);
    canvas.width = Math.round(self.width * density);
    canvas.height = Math.round(self.height * density);
    const context = canvas.getContext("2d");
    context.scale(density, density);
    return context;
  };
  /** SVG path of the line f = 0, by marching squares. */
  self.zeroLine = (f, cell = 8) => {
    const [w, h] = sides();
    const [columns, rows] = [Math.ceil(w / cell), Math.ceil(h / cell)];
    const at = (i, j) => [pad.left + (i * w) / columns, pad.top + (j * h) / rows];
    const values = [];
    for (let j = 0; j <= rows; j++) for (let i = 0; i <= columns; i++) values.push(f(...self.world(at(i, j))));
    let path = "";
    for (let j = 0; j < rows; j++) {
      for (let i = 0; i < columns; i++) {
        const corners = [[i, j], [i + 1, j], [i + 1, j + 1], [i, j + 1]];
        const crossings = [];
        corners.forEach((a, k) => {
          const b = corners[(k + 1) % 4];
          const [u, v] = [values[a[1] * (columns + 1) + a[0]], values[b[1] * (columns + 1) + b[0]]];
          if (u > 0 === v > 0) return;
          const s = u / (u - v);
          const [p, q] = [at(...a), at(...b)];
          crossings.push(`${(p[0] + s * (q[0] - p[0])).toFixed(1)},${(p[1] + s * (q[1] - p[1])).toFixed(1)}`);
        });
        for (let k = 0; k + 1 < crossings.length; k += 2) path += `M${crossings[k]}L${crossings[k + 1]}`;
      }
    }
    return path;
  };
  return self;
}

const CHEVRONS = { x: "M-15,-4l-4,4l4,4M15,-4l4,4l-4,4", y: "M-4,-15l4,-4l4,4M-4,15l4,4l4,-4" };

/**
 * A point to drag, 44 px wide. What keyboard and screen reader move is a hidden range input for each
 * of its `axes` ("xy", "x" or "y"): arrows by `step`, with Shift by five, with Alt by a tenth of it;
 * Home returns to where it stood first. `at()` is its point, `move(point)` asks for another.
 */
export function handle(on, { part, label, shape = "disc", look = "ink", axes = "xy", step = 0.1, at, move, describe = () => "" }) {
  const names = { x: "horizontal position", y: "vertical position" };
  const inputs = [...axes].map((axis, i) =>
    element("input", {
      type: "range", step, tabindex: i ? -1 : 0, "aria-orientation": axis === "x" ? "horizontal" : "vertical",
      "aria-label": axes.length > 1 ? `${label}, ${names[axis]}` : label, "aria-roledescription": "draggable point",
    }),
  );
  const glyph = element(
    "svg", { viewBox: "-22 -22 44 44", "aria-hidden": "true", class: `mx-${look}` },
    element("path", { class: "mx-chevrons", d: [...axes].map((axis) => CHEVRONS[axis]).join("") }),
    element("path", { class: "mx-knob", d: MARKS[shape](8) }),
  );
  const node = element("div", { class: "mx-handle", "data-part": part, "data-axes": axes }, glyph, ...inputs);
  on.layer.append(node);
  const first = at();
  const index = (axis) => (axis === "x" ? 0 : 1);
  const take = (point) => {
    const now = at();
    const free = now.map((value, i) => (axes.includes("xy"[i]) ? point[i] : value));
    move(on.inside(free).map((value, i) => (axes.includes("xy"[i]) ? value : now[i])));
  };

  node.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    event.preventDefault();
    node.setPointerCapture(event.pointerId);
    inputs[0].focus({ preventScroll: true });
    node.classList.add("mx-dragged");
    const [begin, pressed] = [on.px(at()), on.px(on.under(event))];
    const follow = (e) => {
      const now = on.px(on.under(e));
      take(on.world(now.map((value, i) => value - pressed[i] + begin[i])));
    };
    node.addEventListener("pointermove", follow);
    node.addEventListener(
      "lostpointercapture",
      () => {
        node.classList.remove("mx-dragged");
        node.removeEventListener("pointermove", follow);
      },
      { once: true },
    );
  });
  const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
  // On a line all four arrows move along it.
  if (axes === "x") Object.assign(steps, { ArrowUp: [1, 0], ArrowDown: [-1, 0] });
  if (axes === "y") Object.assign(steps, { ArrowRight: [0, 1], ArrowLeft: [0, -1] });
  node.addEventListener("keydown", (event) => {
    const by = steps[event.key];
    if (!by && event.key !== "Home") return;
    event.preventDefault();
    const size = step * (event.shiftKey ? 5 : event.altKey ? 0.1 : 1);
    take(by ? at().map((value, i) => value + size * by[i]) : first);
  });
  inputs.forEach((input, i) =>
    input.addEventListener("input", () => {
      const point = [...at()];
      point[index(axes[i])] = Number(input.value);
      take(point);
    }),
  );
  return {
    node,
    place() {
      const point = at();
      const [px, py] = on.px(point);
      node.style.transform = `translate(${px.toFixed(1)}px, ${py.toFixed(1)}px)`;
      const text = [...axes].map((axis) => `${axes.length > 1 ? `${axis} ` : ""}${format(point[index(axis)])}`).join(", ");
      inputs.forEach((input, i) => {
        const [low, high] = on[axes[i]];
        setAttributes(input, { min: low.toFixed(2), max: high.toFixed(2), "aria-valuetext": text + describe() });
        input.value = point[index(axes[i])];
      });
    },
  };
}
