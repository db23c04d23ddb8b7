// The page: asks the API with the caller's own rights, and draws what it says. Text goes into the document as text only.

import { Chart } from "/page/chart.js";
import { el, table } from "/page/nodes.js";
import { drawForesight } from "/page/foresight.js";

const POLL_MS = 3000, POINTS = 125, EVENTS_SHOWN = 100;
const SOURCES = { cache: "c0", origin: "c2", replica: "c1", local: "c3", names: "c5" };
const CAUSES = { latency: "c2", link: "c1", queue: "c3", names: "c5", memory: "c4", budget: "c4", store: "c7", upload: "c0", retry: "c6",
                 deadline: "c9", agent: "c8" };
const $ = (id) => document.getElementById(id);
let token = sessionStorage.getItem("foremount-token") || "";
let moments = [], last = null, whyAbout = null, failures = 0, lastEvent = 0;

// Small change

function size(bytes) {
  for (const unit of ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]) {
    if (Math.abs(bytes) < 1024 || unit === "PiB") return `${unit === "B" ? Math.round(bytes) : bytes.toPrecision(3)} ${unit}`;
    bytes /= 1024;
  }
  return "";
}
const rate = (bytes) => `${size(bytes)}/s`;
const seconds = (value) => (value >= 100 ? `${Math.round(value)} s` : value >= 1 ? `${value.toFixed(1)} s` : `${Math.round(value * 1000)} ms`);
const share = (value) => `${Math.round(value * 100)} %`;
const clock = (at_s) => new Date(at_s * 1000).toLocaleTimeString();
const sum = (numbers) => Object.values(numbers).reduce((total, value) => total + value, 0);
const largest = (numbers) => Object.entries(numbers).sort((a, b) => b[1] - a[1]).filter(([, value]) => value > 0).map(([name]) => name);

function bar(value, label, high = false) {
  return el("progress", { max: 1, value: Math.max(0, Math.min(1, value)), "aria-label": label, class: high ? "high" : "" });
}

// The API

async function ask(path, options = {}) {
  const headers = { ...(token ? { Authorization: `Bearer ${token}` } : {}), ...(options.headers || {}) };
  const answer = await fetch(path, { ...options, headers, cache: "no-store" });
  if (answer.status === 401) { login(); throw new Error("a token is needed"); }
  if (!answer.ok) {
    let reason = `HTTP status ${answer.status}`;
    try { const { error } = await answer.json(); reason = [error.subject, error.reason].filter(Boolean).join(" ") + (error.hint ? `: ${error.hint}` : ""); } catch { /* no body of ours */ }
    throw new Error(reason);
  }
  return answer;
}

function login() {
  if (token) $("login-error").textContent = "This token is not known here.";
  token = "";
  sessionStorage.removeItem("foremount-token");
  $("main").hidden = true;
  if ($("login").hidden) { $("login").hidden = false; $("token").focus(); }
}

$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  token = $("token").value.trim();
  sessionStorage.setItem("foremount-token", token);
  $("token").value = "";
  refresh().then(() => { if ($("login").hidden) listen(); });
});

async function refresh() {
  try {
    draw(await (await ask("/v1/overview")).json());
    failures = 0;
    $("link").textContent = `live, ${new Date().toLocaleTimeString()}`;
    $("link").className = "muted";
  } catch (error) {
    failures += 1;
    $("link").textContent = `no answer: ${error.message}`;
    $("link").className = "bad";
  }
}

async function listen() {
  for (;;) {
    try {
      const answer = await ask(`/v1/events${lastEvent ? `?since=${lastEvent}` : ""}`);
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        const frames = (rest + value).split("\n\n");
        rest = frames.pop();
        for (const frame of frames) {
          const data = frame.split("\n").find((line) => line.startsWith("data: "));
          if (data) happened(JSON.parse(data.slice(6)));
        }
      }
    } catch { if (!$("login").hidden) return; }
    await new Promise((go) => setTimeout(go, 2000));
    lastEvent = 0; // another agent counts anew
  }
}

function happened(event) {
  lastEvent = event.id;
  if (event.kind === "stats") {
    moments = [...moments, event.data].slice(-POINTS);
    drawCharts();
    return;
  }
  const sentence = tell(event);
  if (!sentence) return;
  const list = $("events");
  if (list.firstElementChild && list.firstElementChild.className === "muted") list.replaceChildren();
  list.prepend(el("li", {}, el("time", {}, clock(event.at_s)), sentence));
  while (list.children.length > EVENTS_SHOWN) list.lastElementChild.remove();
  refresh();
}

function tell({ kind, data }) {
  if (kind === "site") return `site ${data.site} ${data.answers ? "answers again" : "does not answer"}`;
  if (kind === "worker") return data.connected ? "the fs worker is connected" : "the fs worker has gone";
  if (kind === "policy") return data.error ? `documents refused: ${data.error}` : `policy ${data.after} in force: ${data.changes.join("; ") || "nothing changed"}`;
  return "";
}

// Drawing

const charts = {
  throughput: new Chart($("throughput"), { label: "Bytes a second by source", colours: SOURCES, format: rate }),
  waits: new Chart($("waits"), { label: "Seconds waited in each second by cause", colours: CAUSES, format: (value) => value.toFixed(2) }),
};

function drawCharts() {
  const per = (name) => moments.map((moment) => ({
    at_s: moment.at_s,
    values: Object.fromEntries(Object.entries(moment[name]).map(([key, value]) => [key, value / moment.seconds])),
  }));
  charts.throughput.show(per("bytes"));
  charts.waits.show(per("waits"));
  drawTiles();
}

function drawTiles() {
  if (!last) return;
  const recent = moments.slice(-5), span = recent.reduce((total, moment) => total + moment.seconds, 0) || 1;
  const over = (name) => recent.reduce((total, moment) => total + sum(moment[name]), 0) / span;
  const cache = last.status.stores.cache || {};
  const rows = [
    ["Read and written", rate(over("bytes"))],
    ["Operations", over("operations").toFixed(over("operations") < 10 ? 1 : 0), "/s"],
    ["Waiting", over("waits").toFixed(2), "s/s"],
    ["Wait right now", String(last.stats.waiting.length), "operations"],
    ["On their way", String(last.transfers.requests.length + last.transfers.more), "requests"],
    ["Cache", cache.cap ? share(cache.used / cache.cap) : "-", cache.cap ? `of ${size(cache.cap)}` : ""],
  ];
  $("tiles").replaceChildren(...rows.map(([name, value, unit]) => el("div", {}, el("dt", {}, name), el("dd", {}, value, unit ? el("small", {}, unit) : null))));
}

function draw(seen) {
  last = seen;
  $("login").hidden = true;
  $("main").hidden = false;
  if (seen.stats.moments.length && (!moments.length || seen.stats.moments.at(-1).at_s >= moments.at(-1).at_s)) moments = seen.stats.moments;
  $("place").textContent = [seen.status.mountpoint, seen.status.host && `on ${seen.status.host}`].filter(Boolean).join(" ");
  document.title = `${seen.status.health.verdict === "serving" ? "" : "! "}Foremount ${seen.status.mountpoint || ""}`;
  $("foot").textContent = `Foremount ${seen.status.version}`;
  drawHealth(seen.status.health);
  drawCharts();
  drawJobs(seen.jobs.jobs);
  drawSlow(seen.stats);
  drawSites(seen.replicas.replicas);
  drawTransfers(seen.transfers);
  drawCache(seen.status);
  drawPolicy(seen.policies);
  drawRooms(seen.rooms.rooms);
  drawForesight($("foresight"), ask, "foresight" in seen.rooms.rooms);
  const opens = (seen.stats.rows.open || {}).passthrough;
  $("passthrough-opens").textContent = opens ? opens.count.toLocaleString() : "0";
}

function drawHealth(health) {
  const text = `${health.verdict} ${health.sentence}`;
  if ($("health").dataset.text === text) return; // not read out again
  $("health").dataset.text = text;
  const serving = health.verdict === "serving";
  $("health").className = serving ? "health" : "health trouble";
  $("health").replaceChildren(
    el("p", {}, el("strong", { class: serving ? "good" : "bad" }, health.verdict), health.sentence),
    el("ul", {}, ...health.troubles.map((trouble, index) => el("li", {}, index ? `${trouble.what}. ` : "", el("span", { class: "muted" }, `→ ${trouble.advice}`)))));
}

function drawJobs(jobs) {
  const rows = jobs.map((job) => [
    [el("span", {}, job.job), el("span", { class: "sub" }, `${job.commands.join(", ") || "-"}`)],
    String(job.uid),
    String(job.processes),
    size(job.bytes_minute),
    [bar(job.stall, `stall of ${job.job}`, job.stall > 0.2), share(job.stall)],
    seconds(job.wait_s_minute),
    largest(job.waits).slice(0, 2).join(", ") || "-",
    el("button", { type: "button", class: "quiet", "aria-label": `Why is ${job.job} slow?`, onclick: () => explain({ job: job.job }) }, "Why?"),
  ]);
  keep($("jobs"), table("Jobs over the last minute", [{ name: "Job" }, { name: "User id", num: true }, { name: "Processes", num: true },
    { name: "Read in a minute", num: true }, { name: "Stalled" }, { name: "Waited", num: true }, { name: "Mostly for" }, { name: "" }], rows,
  "Nobody has asked for anything yet."));
}

// Replaces the content and gives the focus back to the control that had it.
function keep(place, content) {
  const focused = place.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
  place.replaceChildren(content);
  if (focused) [...place.querySelectorAll("[aria-label]")].find((node) => node.getAttribute("aria-label") === focused)?.focus();
}

// Calls that differ in their time alone become one, that of the slowest, with their number.
function alike(calls) {
  const found = new Map();
  for (const call of calls) {
    const key = [call.operation, call.path, call.pid, call.error].join(" ");
    const seen = found.get(key);
    if (!seen) found.set(key, { ...call, times: 1 });
    else found.set(key, { ...(call.seconds > seen.seconds ? call : seen), began_s: Math.max(call.began_s, seen.began_s), times: seen.times + 1 });
  }
  return [...found.values()].sort((a, b) => b.began_s - a.began_s);
}

function drawSlow(stats) {
  const row = (call, going) => [
    [going ? el("span", { class: "tag bad" }, `${seconds(call.seconds)} …`) : el("span", { class: "whole" }, seconds(call.seconds)),
      call.times > 1 ? el("span", { class: "sub whole" }, `slowest of ${call.times}`) : ""],
    call.operation,
    el("span", { class: "mono" }, call.path || "-"),
    `${call.command} ${call.pid}`,
    call.error ? el("span", { class: "bad" }, call.error) : largest(call.causes).slice(0, 3).map((name) => el("span", { class: "tag" }, `${name} ${seconds(call.causes[name])}`)),
    clock(call.began_s),
  ];
  const rows = [...stats.waiting.map((call) => row(call, true)), ...alike(stats.slow).slice(0, 10).map((call) => row(call, false))];
  $("slow").replaceChildren(table("Operations that took 0.1 s or more, or go on", [{ name: "Took" }, { name: "What" }, { name: "Path" },
    { name: "Process" }, { name: "Because of" }, { name: "Last began" }], rows, "Nothing took longer than 0.1 s."));
}

function drawSites(replicas) {
  const rows = replicas.map((each) => [
    [each.site, el("span", { class: "sub" }, `${each.role} of ${each.prefix}${each.root ? `, ${each.root}` : ""}`)],
    el("span", { class: each.answers ? "tag" : "tag bad" }, each.local ? "this host" : each.answers ? "answers" : "does not answer"),
    each.bytes_per_s === null ? "-" : rate(each.bytes_per_s),
    each.ttfb_s === null ? "-" : seconds(each.ttfb_s),
    String(each.requests_in_flight),
  ]);
  $("sites").replaceChildren(table("Sites", [{ name: "Site" }, { name: "State" }, { name: "Line", num: true }, { name: "First byte", num: true },
    { name: "In flight", num: true }], rows, "No site is configured."));
}

function drawTransfers({ orders, requests, more }) {
  const progress = (done, total, label) => [bar(total ? done / total : 1, label), el("span", { class: "whole" }, `${size(done)} of ${size(total)}`)];
  const rows = orders.map((order) => [
    [el("span", {}, `fetch ${order.paths.join(" ")}`), el("span", { class: "sub" }, `${order.files_done} of ${order.files_total} files${order.failed ? `, ${order.failed} failed` : ""}`)],
    progress(order.bytes_done, order.bytes_total, `fetch of ${order.paths.join(" ")}`), "an order"]);
  for (const each of requests.slice(0, 10)) {
    const what = `${each.site}:${each.path}`;
    rows.push([[el("span", { class: "mono" }, what), el("span", { class: "sub" }, `from ${size(each.offset)}, ${each.state}`)],
      progress(each.bytes_done, each.bytes_total, what), each.readers ? `${each.readers} waiting` : each.priority]);
  }
  const hidden = requests.length - 10 + more;
  $("transfers").replaceChildren(table("Transfers", [{ name: "What" }, { name: "Progress" }, { name: "For" }], rows, "Nothing is on its way."),
    hidden > 0 ? el("p", { class: "note" }, `and ${hidden} more`) : "");
}

function drawCache({ stores, fetches, open_objects }) {
  const rows = Object.entries(stores).map(([name, store]) => [
    [name, el("span", { class: "sub mono" }, store.directory || "")],
    store.trouble ? el("span", { class: "bad" }, store.trouble) : [bar(store.cap ? store.used / store.cap : 0, `${name} used`), el("span", { class: "whole" }, `${size(store.used)} of ${size(store.cap)}`)],
    String(store.objects ?? "-"), String(store.blocks_broken ?? "-")]);
  const asked = fetches.fetched_bytes || 0;
  $("cache").replaceChildren(table("Stores", [{ name: "Store" }, { name: "Used" }, { name: "Objects", num: true }, { name: "Broken blocks", num: true }], rows, "-"),
    el("p", { class: "note" }, `${size(asked)} fetched in ${fetches.fetches || 0} requests, ${size(fetches.prefetched_bytes || 0)} of it ahead of readers; ` +
      `${fetches.retries || 0} retries, ${fetches.failures || 0} failures. ${open_objects} objects open.`));
}

function drawPolicy(policies) {
  $("policy").replaceChildren(
    policies.error ? el("p", { class: "bad" }, `${policies.error.subject}: ${policies.error.reason}; version ${policies.version} stays in force.`) : "",
    el("p", {}, "Version ", el("code", {}, policies.version)),
    el("ul", { class: "docs" }, ...policies.documents.map((document) => el("li", {}, el("b", {}, document.name), document.shipped ? el("span", { class: "muted" }, " shipped") : "",
      el("span", { class: "sub muted" }, ` ${document.about}`), document.rules.length ? el("div", {}, ...document.rules.map((rule) => el("span", { class: "tag" }, rule))) : ""))));
}

function drawRooms(rooms) {
  const words = (value) => (value === null || value === undefined ? "-" : typeof value === "object" ? JSON.stringify(value) : String(value));
  $("rooms").replaceChildren(...Object.entries(rooms).map(([name, facts]) => {
    const list = Array.isArray(facts) ? facts : Object.entries(facts).map(([key, value]) => ({ what: key, value }));
    const columns = [...new Set(list.flatMap((row) => Object.keys(row)))];
    const label = (text) => text.replaceAll("_", " ");
    return el("section", { class: "card", "aria-label": name }, el("div", { class: "head" }, el("h2", {}, label(name))),
      table(name, columns.map((column) => ({ name: label(column) })), list.slice(0, 50).map((row) => columns.map((column) => words(row[column]))), "Nothing."));
  }));
}

async function explain(about) {
  whyAbout = about;
  try {
    const query = new URLSearchParams(about).toString();
    const why = await (await ask(`/v1/why${query ? `?${query}` : ""}`)).json();
    $("h-why").textContent = `Why: ${why.subject}, last ${why.window_s} s`;
    $("why-body").replaceChildren(
      el("p", { class: "lead" }, why.sentence),
      el("ul", { class: "causes" }, ...why.causes.filter((cause) => cause.seconds >= 0.001).map((cause) => el("li", {},
        el("div", { class: "row" }, el("b", {}, seconds(cause.seconds)), bar(cause.share, `share of ${cause.cause}`), el("span", { class: "tag" }, cause.cause), el("span", {}, cause.meaning)),
        el("p", { class: "advice" }, `→ ${cause.change}`, cause.rule ? el("span", {}, ` (by ${cause.rule})`) : "")))),
      why.paths.length ? el("h3", {}, "Waited for") : "",
      why.paths.length ? table("Paths", [{ name: "Path" }, { name: "Seconds", num: true }], why.paths.map((each) => [el("span", { class: "mono" }, each.path), seconds(each.seconds)]), "") : "");
  } catch (error) {
    $("why-body").replaceChildren(el("p", { class: "bad" }, error.message));
  }
  $("why").hidden = false;
  $("why").focus();
}

$("why-all").addEventListener("click", () => explain({}));
$("why-close").addEventListener("click", () => { $("why").hidden = true; $("why-all").focus(); whyAbout = null; });
$("reload").addEventListener("click", async () => {
  try {
    const done = await (await ask("/v1/policies/reload", { method: "POST", headers: { "If-Match": `"${last.policies.version}"` } })).json();
    $("reload-said").textContent = done.changes.length ? `Changes in force: ${done.changes.length}, version ${done.after}.` : "Nothing has changed.";
  } catch (error) { $("reload-said").textContent = error.message; }
  refresh();
});

const theme = $("theme");
theme.value = localStorage.getItem("foremount-theme") || "";
function paint() { if (theme.value) document.documentElement.dataset.theme = theme.value; else delete document.documentElement.dataset.theme; }
theme.addEventListener("change", () => { localStorage.setItem("foremount-theme", theme.value); paint(); });
paint();

refresh().then(() => { if ($("login").hidden) listen(); });
setInterval(() => { if (!document.hidden && $("login").hidden) refresh(); }, POLL_MS);
