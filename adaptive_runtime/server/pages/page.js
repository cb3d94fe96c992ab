"use strict";

const EVERY_MS = 1000;
const MOST_LOADS = 300;
const STORE = "autotailor-token";
const CONFIG = { displayModeBar: false, responsive: true };
const COLOURS = ["#5e6671", "#2f62bd", "#d9822b", "#3f8f5f", "#9b4f96", "#b3352f"]; // coordinator first
const loads = [];
const at = (id) => document.getElementById(id);
const number = (value, unit, digits = 1) => (value === null || value === undefined ? "unknown" : `${value.toFixed(digits)} ${unit}`);

function token() {
  const given = decodeURIComponent(location.hash.slice(1));
  if (given) {
    sessionStorage.setItem(STORE, given);
    history.replaceState(null, "", location.pathname); // a token does not stay in the address
  }
  return sessionStorage.getItem(STORE) || "";
}

function element(name, text) {
  const made = document.createElement(name);
  made.textContent = text; // never as HTML: names come from the bundle
  return made;
}

function ago(seconds) {
  return seconds < 120 ? `${Math.round(seconds)} s ago` : `${Math.round(seconds / 60)} min ago`;
}

function overBudget(answers, budget_ms) { // a run's budget; the deadline is that of a whole request, with its waiting
  if (budget_ms === null) return "no budget";
  const over = answers.filter((one) => one.latency_ms > budget_ms).length;
  return `${over} of the latest ${answers.length} (${number(budget_ms, "ms", 2)})`;
}

function facts(state) {
  const { model, load, queue, outcomes, latency_ms: latency } = state;
  const latest = state.answers.at(-1);
  const taken = Object.keys(model.taken_out);
  return {
    "SubNet": model.serving.digest + (model.serving.placed ? " over devices" : model.serving.form === null ? "" : ` in ${model.serving.form}`),
    "exit": model.serving.early ? "by thresholds" : model.serving.exit || "whole",
    "standby": model.standby ? model.standby.name : "none",
    "last exit": latest ? latest.exit : "none yet",
    "latency p50": number(latency.p50, "ms", 2),
    "latency p95": number(latency.p95, "ms", 2),
    "latency p99": number(latency.p99, "ms", 2),
    "load": number(load.load === null ? null : 100 * load.load, "%", 0),
    "load in 1 s": load.forecast.length ? `${number(100 * load.forecast[0], "%", 0)} (${load.method})` : "unknown",
    "slow-down": load.slow_down === null ? "not followed" : number(load.slow_down, "times", 2),
    "cache hits": load.hit_rate === null ? "not sensed" : `${number(100 * load.hit_rate, "%", 0)} (by ${load.hit_rate_by})`,
    "rule": (model.rule || "none") + (model.mu === null ? "" : `, mu ${model.mu.toFixed(2)}`),
    "memory": number(model.used_mib, "MiB") + (model.budget_mib === null ? "" : ` of ${number(model.budget_mib, "MiB")}`),
    "queue": `${queue.depth} of ${queue.places}`,
    "answered": `${outcomes.answered || 0}`,
    "over the budget": overBudget(state.answers, model.budget_ms),
    "past the deadline": `${outcomes.late || 0}`,
    "refused": `${(outcomes.rejected || 0) + (outcomes.expired || 0) + (outcomes.refused || 0)}`,
    "failed": `${outcomes.failed || 0}`,
    "switches": `${model.switches}`,
    "fallbacks on the coordinator": `${model.stood_in}`,
    "taken out": taken.length ? taken.join(", ") : "none",
  };
}

function showFacts(state) {
  at("facts").replaceChildren(
    ...Object.entries(facts(state)).map(([name, value]) => {
      const box = document.createElement("div");
      box.append(element("dt", name), element("dd", value));
      box.dataset.fact = name;
      return box;
    }),
  );
}

function showDecisions(state) {
  at("decisions").replaceChildren(
    ...state.decisions.map((one) => {
      const row = document.createElement("tr");
      row.append(element("td", ago(one.age_s)), element("td", one.step), element("td", one.name), element("td", one.reason));
      return row;
    }),
  );
  at("faults").replaceChildren(...state.load.faults.map((line) => element("li", line)));
}

function showSplit(split) {
  at("split").hidden = !split;
  if (!split) return;
  const names = ["coordinator", ...split.devices.map((one) => one.name)];
  const boxes = split.plan.map((name, segment) => {
    const box = element("span", `${segment} ${name}`);
    box.style.background = COLOURS[names.indexOf(name) % COLOURS.length] || COLOURS[0];
    return box;
  });
  at("plan").replaceChildren(...boxes);
  at("predicted").textContent = `predicted ${number(split.plan_ms, "ms", 2)}, the coordinator alone ${number(split.coordinator_ms, "ms", 2)}; ` +
    `the coordinator's slow-down ${split.slow_down.toFixed(2)}; ${split.changes} changes of plan, ${split.on_coordinator} answers finished on the coordinator`;
  at("devices").replaceChildren(
    ...split.devices.map((one) => {
      const row = document.createElement("tr");
      const link = [number(one.up_mbps, "Mbit/s"), number(one.down_mbps, "Mbit/s"), number(one.round_trip_ms, "ms")];
      row.append(...[one.name, one.state, ...link, `${one.answered}`, one.reason].map((text) => element("td", text)));
      return row;
    }),
  );
}

function layout(y) {
  const ink = getComputedStyle(document.body).color;
  return {
    autosize: true, margin: { l: 55, r: 10, t: 10, b: 40 }, showlegend: true, legend: { orientation: "h", y: 1.15 },
    paper_bgcolor: "transparent", plot_bgcolor: "transparent", font: { color: ink },
    xaxis: { title: { text: "seconds ago" }, autorange: "reversed", zeroline: false }, yaxis: { title: { text: y }, rangemode: "tozero" },
  };
}

function escaped(text) {
  return text.replace(/[<>&]/g, (sign) => ({ "<": "&lt;", ">": "&gt;", "&": "&amp;" })[sign]); // plotly reads HTML in labels
}

function showCharts(state) {
  if (typeof Plotly === "undefined") return; // not installed on this device: the facts will do
  const rows = Map.groupBy ? Map.groupBy(state.answers, (one) => `${one.subnet} ${one.exit}`) : new Map([["answers", state.answers]]);
  const traces = [...rows].map(([name, answers]) => ({
    name: escaped(name), mode: "markers", type: "scatter",
    x: answers.map((one) => one.age_s), y: answers.map((one) => one.latency_ms + one.waited_ms),
  }));
  Plotly.react("latencies", traces, layout("ms"), CONFIG);
  const now = performance.now() / 1000;
  loads.push({ at: now, load: state.load.load });
  loads.splice(0, Math.max(0, loads.length - MOST_LOADS));
  const known = { name: "load", mode: "lines", type: "scatter", x: loads.map((one) => now - one.at), y: loads.map((one) => one.load) };
  const ahead = state.load.forecast;
  const next = {
    name: "forecast", mode: "lines+markers", type: "scatter", line: { dash: "dot" },
    x: ahead.map((_, step) => -1 - step), y: ahead,
  };
  Plotly.react("load", [known, next], layout("index"), CONFIG);
}

function status(text, broken) {
  at("status").textContent = text;
  at("status").classList.toggle("broken", broken);
}

async function poll() {
  try {
    const answer = await fetch("/state", { headers: { Authorization: `Bearer ${token()}` }, cache: "no-store" });
    if (answer.status === 401) {
      at("ask").hidden = false;
      at("shown").hidden = true;
      status("asks for its token", false);
      return;
    }
    const state = await answer.json();
    if (!answer.ok) throw new Error(state.error);
    at("ask").hidden = true;
    at("shown").hidden = false;
    at("name").textContent = `${state.name} ${state.version}`;
    showFacts(state);
    showDecisions(state);
    showSplit(state.split);
    showCharts(state);
    status(`up for ${Math.round(state.uptime_s)} s`, false);
  } catch (error) {
    status(`no answer: ${error.message}`, true);
  }
}

async function keepPolling() {
  await poll();
  setTimeout(keepPolling, EVERY_MS);
}

at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(STORE, at("token").value);
  at("token").value = "";
  poll();
});
keepPolling();
