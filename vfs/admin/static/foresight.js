// Foresight: evaluations on a time line, copies by rack, and how many mounts read from each copy when. No library.

import { el, svg, table } from "/page/nodes.js";

const WIDTH = 260, HEIGHT = 14;
const SHOWN = 12;
// What passes between two moments of a prediction: [from, to, colour, word].
const SPANS = [["made_ns", "committed_ns", "c5", "saved"], ["committed_ns", "ready_ns", "c2", "copied"],
               ["ready_ns", "started_ns", "c0", "ready and waiting"], ["started_ns", "result_ns", "c1", "evaluated"]];
const MOMENTS = [["committed_ns", "Committed"], ["ready_ns", "Copy ready"], ["started_ns", "Started"], ["result_ns", "Result"]];

const after = (ns) => {
  const seconds = ns / 1e9;
  return Math.abs(seconds) >= 5400 ? `${(seconds / 3600).toFixed(1)} h` : Math.abs(seconds) >= 90 ? `${(seconds / 60).toFixed(1)} min` : `${seconds.toFixed(1)} s`;
};

const named = (names) => names.map((name) => ({ name }));

function legend(entries) {
  return el("ul", { class: "legend" }, ...entries.map(([colour, word]) => el("li", {}, el("span", { class: `swatch ${colour}` }), word)));
}

// Evaluations

function bar(entry, nowNs) {
  const begin = entry.made_ns;
  const end = Math.max(entry.result_ns, entry.ended_ns);
  const open = !entry.ended_ns, last = Math.max(open ? nowNs : end, begin + 1);
  const x = (ns) => (WIDTH * (ns - begin)) / (last - begin);
  const parts = [], said = [];
  for (const [from, to, colour, word] of SPANS) {
    const start = entry[from], stop = entry[to] || (open && start ? last : 0);
    if (!start || !stop || stop <= start) continue;
    parts.push(svg("rect", { class: colour, x: x(start), y: 2, width: Math.max(1, x(stop) - x(start)), height: HEIGHT - 4 }));
    said.push(`${word} ${after(stop - start)}`);
    if (!entry[to]) break;
  }
  const label = `step ${entry.step} at ${entry.site}: ${said.join(", ") || "nothing has happened yet"}`;
  return svg("svg", { class: "span", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label, preserveAspectRatio: "none" }, ...parts);
}

function drawEvaluations(place, entries, nowNs) {
  const rows = entries.slice(0, SHOWN).map((entry) => [
    [el("span", {}, entry.step >= 0 ? `step ${entry.step} at ${entry.site}` : entry.site), el("span", { class: "sub" }, `${entry.job}${entry.evaluation ? `, ${entry.evaluation}` : ""}`)],
    el("span", { class: ["late", "miss", "refused"].includes(entry.outcome) ? "tag bad" : "tag" }, entry.outcome),
    bar(entry, nowNs),
    ...MOMENTS.map(([name]) => (entry[name] ? `+${after(entry[name] - entry.made_ns)}` : "-")),
  ]);
  place.replaceChildren(
    table("Evaluations and what was ready for them", named(["Evaluation", "Outcome", "Time line", ...MOMENTS.map(([, word]) => word)]), rows, "Nothing has been predicted yet."),
    ...(rows.length ? [legend(SPANS.map(([, , colour, word]) => [colour, word]))] : []));
}

// Copies by rack

function drawMap(place, board) {
  const rack = (name) => (name === "-" ? "no rack named" : name);
  const rows = board.map.map((row) => [
    [el("span", { class: "mono" }, `/${row.path}`), el("span", { class: "sub" }, row.job)],
    ...board.racks.map((name) => {
      const found = row.racks.find((each) => each.rack === name);
      if (!found) return "-";
      return [...Object.entries(found.phases).map(([phase, count]) =>
        el("span", { class: phase === "refused" ? "tag bad" : "tag" }, `${count} ${phase}`)), el("span", { class: "sub" }, found.sites.join(", "))];
    })]);
  place.replaceChildren(table("Copies by rack", named(["Of", ...board.racks.map(rack)]), rows, "There are no copies."));
}

// Who reads from which copy

function drawHeat(place, board) {
  if (!board.heat.length) {
    place.replaceChildren(el("p", { class: "empty" }, "Nobody has read from a copy in the last five minutes."));
    return;
  }
  const most = Math.max(...board.heat.flatMap((row) => row.readers), 1);
  const rows = board.heat.map((row) => {
    const peak = Math.max(...row.readers), width = WIDTH / row.readers.length;
    const cells = row.readers.map((readers, index) => (readers ? svg("rect", { class: "c2", x: index * width, y: 0, width, height: HEIGHT,
      "fill-opacity": (0.2 + (0.8 * readers) / most).toFixed(2) }) : null)).filter(Boolean);
    const label = `${row.site}: at most ${peak} mounts at a time, ${row.readers.at(-1)} now`;
    return [[el("span", {}, row.site), el("span", { class: "sub mono" }, `/${row.path}`)], row.rack === "-" ? "-" : row.rack,
      svg("svg", { class: "span heat", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label, preserveAspectRatio: "none" }, ...cells),
      String(peak), String(row.readers.at(-1))];
  });
  const minutes = Math.round((board.heat[0].readers.length * board.bucket_s) / 60);
  place.replaceChildren(table("Mounts that read from each copy", named(["Copy at", "Rack", `Last ${minutes} minutes`, "Most", "Now"]), rows, ""));
}

// Draws it all into `section`, which stays hidden at a mount without foresight. `ask` is the page's own.
export async function drawForesight(section, ask, has) {
  section.hidden = !has;
  if (!has) return;
  const part = (name) => section.querySelector(`[data-part=${name}]`);
  try {
    const board = await (await ask("/v1/foresight")).json();
    part("said").textContent = board.leader ? `led by ${board.leader}` : "nobody leads";
    drawEvaluations(part("evaluations"), board.evaluations, Date.now() * 1e6);
    drawMap(part("map"), board);
    drawHeat(part("heat"), board);
  } catch (error) {
    part("said").textContent = error.message;
  }
}
