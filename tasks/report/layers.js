// Which devices are shown, and the layers of the SubNet that is chosen on each.
const OPERATOR = ["title", "family", "input", "output", "macs", "parameters", "predicted_ms"];
const breakdowns = JSON.parse(document.getElementById("layers").textContent);
for (const breakdown of breakdowns) {
  breakdown.operators = breakdown.operators.map((row) => Object.fromEntries(OPERATOR.map((name, at) => [name, row[at]])));
}
const COLORS = ["#4c7fd9", "#e0823d", "#3f9f6b", "#8d6cc9", "#d6504b", "#2aa5b8", "#b8860b", "#c2578f", "#8c929b"];
const CONFIG = { displayModeBar: false, responsive: true };
const ms = (value) => (value == null ? "–" : `${Number(value.toPrecision(4))} ms`);
const count = (value) => value.toLocaleString("en");
const plain = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;");
const by = (rows, name) => Map.groupBy ? Map.groupBy(rows, name) : rows.reduce(
  (found, row) => found.set(name(row), [...(found.get(name(row)) ?? []), row]), new Map());

class Subnet {
  constructor(breakdown, digest) {
    const { elsewhere, sections, layers } = breakdown.subnets[digest];
    Object.assign(this, { digest, elsewhere, sections });
    this.layers = layers.map(([number, operator]) => ({
      number, ...breakdown.layers[number], ...breakdown.operators[operator],
    }));
    this.sum = this.layers.reduce((sum, layer) => sum + (layer.predicted_ms ?? 0), 0);
    this.total = this.sum + breakdown.offset_ms;
  }
}

class Panel {
  constructor(number) {
    this.breakdown = breakdowns[number];
    this.root = document.getElementById(`subnet-${number}`);
    this.plot = document.getElementById(`layers-${number}`);
    this.front = document.getElementById(`front-${number}`);
    this.by = "layer";
    const families = this.breakdown.operators.map((operator) => operator.family);
    const spent = by(this.breakdown.operators, (operator) => operator.family);
    const weight = (family) => spent.get(family).reduce((sum, one) => sum + (one.predicted_ms ?? 0), 0);
    const ordered = [...new Set(families)].sort((a, b) => weight(b) - weight(a));
    this.colors = new Map(ordered.map((family, at) => [family, COLORS[Math.min(at, COLORS.length - 1)]]));
    [this.shown, this.against] = this.root.querySelectorAll("select");
    this.root.addEventListener("change", () => this.draw());
    for (const button of this.root.querySelectorAll("[data-by]")) {
      button.addEventListener("click", () => { this.by = button.dataset.by; this.draw(); });
    }
    for (const row of this.section().querySelectorAll("tr[data-digest]")) {
      row.addEventListener("click", () => this.choose(row.dataset.digest));
    }
    for (const name of ["front", "latency", "accuracy"]) {
      document.getElementById(`${name}-${number}`).on("plotly_click", ({ points }) => this.choose(points[0].customdata));
    }
    this.draw();
  }

  section() { return this.root.closest("section"); }

  choose(digest) {
    if (digest in this.breakdown.subnets) {
      this.shown.value = digest;
      this.draw();
    }
  }

  subnet(digest) { return digest ? new Subnet(this.breakdown, digest) : null; }

  draw() {
    const subnet = this.subnet(this.shown.value);
    const other = this.subnet(this.against.value);
    for (const button of this.root.querySelectorAll("[data-by]")) {
      button.setAttribute("aria-pressed", String(button.dataset.by === this.by));
    }
    for (const row of this.section().querySelectorAll("tr[data-digest]")) {
      row.classList.toggle("chosen", row.dataset.digest === subnet.digest);
    }
    this.bars(subnet, other);
    this.words(subnet, other);
    this.table(subnet, other);
    this.mark(subnet);
  }

  name(layer) { return this.by === "layer" ? layer.number : layer[this.by]; }

  bars(subnet, other) {
    const traces = [...by(subnet.layers, (layer) => layer.family)].map(([family, layers]) => {
      const groups = [...by(layers, (layer) => this.name(layer))];
      const times = groups.map(([, found]) => found.reduce((sum, layer) => sum + (layer.predicted_ms ?? 0), 0));
      return {
        type: "bar", name: plain(family), marker: { color: this.colors.get(family) },
        x: groups.map(([name]) => name), y: times,
        text: groups.map(([, found], at) => this.hover(found, times[at], subnet)), textposition: "none",
        hovertemplate: "%{text}<extra></extra>",
      };
    });
    if (other) {
      const groups = [...by(other.layers, (layer) => this.name(layer))];
      const times = groups.map(([, found]) => found.reduce((sum, layer) => sum + (layer.predicted_ms ?? 0), 0));
      traces.push({
        type: "scatter", mode: "markers", name: "the other SubNet",
        x: groups.map(([name]) => name), y: times,
        marker: { symbol: "line-ew", size: this.by === "layer" ? 9 : 26, line: { width: 2.5, color: "#8c929b" } },
        text: groups.map(([, found], at) => this.hover(found, times[at], other)),
        hovertemplate: "the other SubNet<br>%{text}<extra></extra>",
      });
    }
    const category = this.by !== "layer";
    const places = [...new Set(this.breakdown.layers.map((layer) => layer.place))];
    const axis = {
      title: { text: category ? "" : "layer, in the order of execution" }, zeroline: false, automargin: true,
      type: category ? "category" : "linear", showgrid: false,
      ...(this.by === "place" ? { categoryorder: "array", categoryarray: places } : {}),
      ...(this.by === "family" ? { categoryorder: "total descending" } : {}),
    };
    const layout = {
      ...this.front.layout, height: 340, legend: { ...this.front.layout.legend, traceorder: "normal", y: 1.1 },
      ...(this.by === "layer" ? this.bands() : {}), barmode: "stack", bargap: category ? 0.3 : 0.15, xaxis: axis,
      yaxis: { title: { text: "predicted latency [ms]" }, zeroline: false, automargin: true },
    };
    Plotly.react(this.plot, traces, layout, CONFIG);
  }

  // Sections as shaded bands with their names, behind the bars of single layers.
  bands() {
    const sections = [...by(this.breakdown.layers.map((layer, number) => ({ ...layer, number })), (layer) => layer.section)]
      .map(([name, layers]) => ({ name, from: layers[0].number - 0.5, to: layers.at(-1).number + 0.5 }));
    const behind = { type: "rect", yref: "paper", y0: 0, y1: 1, layer: "below", line: { width: 0 } };
    const above = { yref: "paper", y: 1, yanchor: "bottom", showarrow: false, font: { size: 11 } };
    return {
      shapes: sections.filter((_, at) => at % 2).map(({ from, to }) => ({ ...behind, x0: from, x1: to, fillcolor: "rgba(128,128,128,.09)" })),
      annotations: sections.map(({ name, from, to }) => ({ ...above, x: (from + to) / 2, text: plain(name) })),
    };
  }

  hover(layers, time, subnet) {
    const share = `${ms(time)}, ${(100 * time / subnet.sum).toFixed(1)} % of the layers`;
    if (layers.length > 1) {
      return `<b>${plain(layers[0][this.by])}</b><br>${layers.length} × ${plain(layers[0].family)}<br>${share}`;
    }
    const [layer] = layers;
    return [
      `<b>${plain(layer.title)}</b>`, plain(layer.place), `${layer.input.join("×")} → ${layer.output.join("×")}`, share,
      `${count(layer.macs)} MACs, ${count(layer.parameters)} parameters`,
    ].join("<br>");
  }

  words(subnet, other) {
    const offset = this.breakdown.offset_ms;
    const sum = (one) => [
      `${ms(one.total)} predicted: ${one.layers.length} layers ${ms(one.sum)} ${offset < 0 ? "−" : "+"} ${ms(Math.abs(offset))} for a run`,
      ...Object.entries(one.elsewhere).map(([name, choice]) => `${name} ${choice}`),
    ].join(", ");
    const found = [sum(subnet), ...(other ? [`the other: ${sum(other)}`] : [])];
    this.root.querySelector(".total").textContent = `${found.join("; ")}.`;
  }

  table(subnet, other) {
    const heads = ["section", "blocks", "channels", "output", "choices", "predicted", "share"];
    const rows = subnet.sections.map((section) => [
      section.name,
      section.stage ? `${section.blocks} of ${section.all_blocks}` : "",
      section.channels,
      section.output.join("×"),
      Object.entries(section.choices).map(([kind, values]) => `${kind} ${values.join("/")}`).join(", "),
      ms(section.predicted_ms),
      (section.predicted_ms ?? 0) / subnet.sum,
    ]);
    if (other) {
      const theirs = new Map(other.sections.map((section) => [section.name, section]));
      heads.splice(-1, 0, "the other");
      rows.forEach((row) => row.splice(-1, 0, ms(theirs.get(row[0])?.predicted_ms)));
    }
    const table = this.root.querySelector("table.sections");
    table.replaceChildren();
    const head = table.createTHead().insertRow();
    heads.forEach((text) => head.appendChild(Object.assign(document.createElement("th"), { textContent: text })));
    const body = table.createTBody();
    for (const row of rows) {
      const line = body.insertRow();
      row.slice(0, -1).forEach((text) => { line.insertCell().textContent = text; });
      const share = `${(100 * row.at(-1)).toFixed(1)} %`;
      const bar = Object.assign(document.createElement("span"), { className: "share" });
      bar.style.setProperty("--share", share);
      line.insertCell().append(bar, share);
    }
  }

  mark(subnet) {
    const traces = this.front.data;
    const at = traces.length - 1;
    const spots = traces.slice(0, at).flatMap((trace) => {
      const place = (trace.customdata ?? []).indexOf(subnet.digest);
      return place < 0 ? [] : [[trace.x[place], trace.y[place]]];
    });
    Plotly.restyle(this.front, { x: [spots.map(([x]) => x)], y: [spots.map(([, y]) => y)] }, [at]);
  }
}

const panels = breakdowns.map((_, number) => new Panel(number));
const fronts = document.getElementById("fronts");
const buttons = [...document.querySelectorAll("nav.filter button")];

function filter(device) {
  buttons.forEach((button) => button.setAttribute("aria-pressed", String(button.dataset.device === device)));
  for (const part of document.querySelectorAll("[data-of]")) {
    part.hidden = Boolean(device) && part.dataset.of !== device;
  }
  if (fronts) {
    Plotly.restyle(fronts, { visible: fronts.data.map((trace) => !device || trace.meta === device) });
    Plotly.relayout(fronts, { "xaxis.autorange": true, "yaxis.autorange": true });
  }
  dispatchEvent(new Event("resize"));
}

buttons.forEach((button) => button.addEventListener("click", () => filter(button.dataset.device)));
fronts?.on("plotly_click", ({ points: [point] }) => {
  const panel = panels.find((one) => one.section().dataset.of === point.data.meta);
  panel.choose(point.customdata);
  panel.root.scrollIntoView({ block: "center" });
});
addEventListener("load", () => dispatchEvent(new Event("resize")));
