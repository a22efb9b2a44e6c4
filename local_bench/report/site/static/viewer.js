"use strict";
/* The viewer: pages by the part of the address after #, data loaded by script elements when it is needed. Every text
   from a run becomes a text node; nothing is inserted as HTML. */

const loaded = new Map(); // name -> data
const waiting = new Map(); // name -> functions
window.LB = (name, data) => {
  loaded.set(name, data);
  for (const done of waiting.get(name) || []) done(data);
  waiting.delete(name);
};

function load(name) {
  if (loaded.has(name)) return Promise.resolve(loaded.get(name));
  return new Promise((done, failed) => {
    if (waiting.has(name)) { waiting.get(name).push(done); return; }
    waiting.set(name, [done]);
    const script = document.createElement("script");
    script.src = `data/${name}.js`;
    script.onerror = () => failed(new Error(`data/${name}.js is missing: write the report again`));
    document.head.append(script);
  });
}

/* An element with attributes (`on…` are listeners) and children; texts become text nodes. */
function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(3).filter((one) => one !== null && one !== undefined && one !== false));
  return element;
}

const main = document.getElementById("main");
const show = (...children) => main.replaceChildren(...children.flat(4).filter((one) => one !== null && one !== undefined && one !== false));
const large = document.getElementById("large");
const usd = (x) => (x === null ? "–" : x.toLocaleString("en-US", { style: "currency", currency: "USD", minimumFractionDigits: Math.abs(x) < 0.01 && x ? 6 : 2 }));
const percent = (x) => (x === null || Number.isNaN(x) ? "–" : `${(100 * x).toFixed(1)} %`);
const plural = (n, word) => `${n.toLocaleString("en-US")} ${word}${n === 1 ? "" : "s"}`;
const digits = (x) => (x === null || x === undefined ? "–" : Number(x.toFixed(3)).toString());
const path = (...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;
const image = (sha) => `images/${sha.slice(0, 2)}/${sha}.png`;
const thumb = (sha) => `thumbs/${sha.slice(0, 2)}/${sha}.webp`;
const preview = (sha) => `previews/${sha.slice(0, 2)}/${sha}.webp`;
const isDigest = (sha) => /^[0-9a-f]{64}$/.test(sha || "");

function table(header, rows, caption = null) {
  const cell = (value, tag) => (value instanceof Element && value.matches("td, th") ? value : h(tag, tag === "th" ? { scope: "col" } : {}, value ?? "–"));
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption || "Table" }, h("table", {}, h("thead", {}, h("tr", {}, header.map((one) => cell(one, "th")))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map((one, i) => (i ? cell(one, "td") : one instanceof Element && one.matches("th") ? one : h("th", { scope: "row" }, one))))))));
}

/* Marks the best and second best of a column of numbers: index -> class. */
function marks(values, better) {
  const known = [...new Set(values.filter((x) => x !== null && x !== undefined))].sort((a, b) => (better === "lower" ? a - b : b - a));
  return values.map((x) => (known.length < 2 || x === null || x === undefined ? null : x === known[0] ? "best" : x === known[1] ? "second" : null));
}

/* ---- overview */

function bar(total) {
  const of = (x) => `${Math.min(100, (100 * x) / (total.value_usd || 1)).toFixed(1)}%`;
  const label = total.low_usd === null ? usd(total.revenue_usd) : `${usd(total.revenue_usd)}, 95 % interval ${usd(total.low_usd)} to ${usd(total.high_usd)}`;
  const fill = h("i"), ends = total.low_usd === null ? null : h("b");
  fill.style.width = of(total.revenue_usd);
  if (ends) { ends.style.left = of(total.low_usd); ends.style.width = of(total.high_usd - total.low_usd); }
  return h("span", { class: "bar", role: "img", "aria-label": label }, fill, ends);
}

function conclusion(s) {
  const [first, second] = [...s.models].filter((one) => one.group === s.models[0].group).sort((a, b) => b.total.revenue_usd - a.total.revenue_usd || b.total.n_accepted - a.total.n_accepted);
  if (!s.models.some((one) => one.total.n)) return h("p", {}, "Nothing has been decided yet.");
  const money = first.total.value_usd > 0;
  const said = (one) => (money ? `${usd(one.total.revenue_usd)} of ${usd(one.total.value_usd)}` : `${one.total.n_accepted} of ${plural(one.total.n, "image")} accepted`);
  const pair = second && s.significance.find((one) => [one.a, one.b].every(([run, name]) => [first, second].some((x) => x.run === run && x.name === name)));
  const p = pair ? pair.p_holm : null;
  const lead = p === null ? "" : ` The lead is ${p < 0.05 ? "" : "not "}significant (paired test over tasks, p = ${p < 0.001 ? "< 0.001" : p.toFixed(3)} after Holm's correction).`.replace("p = <", "p <");
  return h("p", { class: "lead" }, h("b", {}, first.name), ` ${money ? "earned most" : "has the most images accepted"}: ${said(first)}`,
    first.total.low_usd === null ? "" : ` (95 %: ${usd(first.total.low_usd)} to ${usd(first.total.high_usd)})`,
    first.cost_usd === null ? "" : `, at a cost of ${usd(first.cost_usd)}`, ". ",
    second ? `Next: ${second.name} with ${said(second)}.${lead}` : "");
}

function overview(s) {
  const models = [...s.models].sort((a, b) => a.group - b.group || b.total.revenue_usd - a.total.revenue_usd || b.total.n_accepted - a.total.n_accepted);
  const several = s.runs.length > 1;
  const money = models.some((one) => one.total.value_usd > 0);
  // Made anew for every table: an element that is put into a second one leaves the first.
  const header = () => [h("th", { class: "text", scope: "col" }, "model"), ...(several ? [h("th", { class: "text", scope: "col" }, "run")] : []), ...(money ? ["revenue", "95 % interval", "", "share"] : []), "tasks accepted", "images accepted", "95 %", "unscored", "cost", ...(money ? ["profit"] : [])];
  const groups = [...new Set(models.map((one) => one.group))];
  const parts = groups.map((group) => {
    const of = models.filter((one) => one.group === group);
    const best = marks(of.map((one) => (money ? one.total.revenue_usd : one.total.n_accepted / one.total.n)));
    const rows = of.map((one, i) => {
      const t = one.total;
      return [h("a", { href: path("model", one.run, one.name) }, one.name), ...(several ? [h("td", { class: "text" }, s.runs[one.run].name)] : []),
        ...(money ? [h("td", { class: best[i] }, usd(t.revenue_usd)), t.low_usd === null ? "–" : `${usd(t.low_usd)} to ${usd(t.high_usd)}`, bar(t), percent(t.value_usd ? t.revenue_usd / t.value_usd : null)] : []),
        `${t.n_tasks_accepted} / ${t.n_tasks}`, h("td", { class: money ? null : best[i] }, `${t.n_accepted} / ${t.n + t.n_unscored}`), `${percent(t.acceptance_low)} to ${percent(t.acceptance_high)}`, t.n_unscored, usd(one.cost_usd), ...(money ? [one.cost_usd === null ? "–" : usd(t.revenue_usd - one.cost_usd)] : [])];
    });
    return [groups.length > 1 ? h("h3", {}, `Comparable runs: ${[...new Set(of.map((one) => s.runs[one.run].name))].join(", ")}`) : null, table(header(), rows, "Leaderboard")];
  });
  const names = [...new Set(models.flatMap((one) => one.scores.map((score) => score.name)))];
  const scoreRows = (of) => {
    const columns = names.map((name) => { const values = of.map((one) => one.scores.find((score) => score.name === name)?.mean ?? null); return marks(values, s.better[name]?.includes("low") ? "lower" : "higher"); });
    return of.map((one, i) => [several ? `${one.name} (${s.runs[one.run].name})` : one.name, ...names.map((name, k) => {
      const score = one.scores.find((x) => x.name === name);
      if (!score || score.mean === null) return "–";
      return h("td", { class: columns[k][i], title: `n = ${score.n}${score.n_unscored ? `, ${score.n_unscored} unscored` : ""}${score.low === null ? "" : `, 95 % ${digits(score.low)} to ${digits(score.high)}`}` }, digits(score.mean));
    })]);
  };
  const categories = [...new Set(models.flatMap((one) => Object.keys(one.categories)))].sort();
  const warnings = [...s.differences.map((one) => `Not comparable: ${one}.`), ...s.runs.flatMap((run) => run.warnings.map((one) => (several ? `${run.name}: ${one}` : one)))];
  show(h("h2", {}, "Overview"), conclusion(s),
    warnings.length ? h("section", { class: "warnings", "aria-label": "What to distrust" }, h("h3", {}, "What to distrust"), h("ul", {}, warnings.map((one) => h("li", {}, one)))) : null,
    h("h3", {}, "Leaderboard"), parts, h("p", { class: "muted" }, "Bold: best; underlined: second best. 95 %: for tasks like these and the same decisions, without the judge's errors. Unscored images earn nothing and count as not accepted."),
    names.length ? [h("h3", {}, "Scores (means)"), groups.map((group) => table(["model", ...names], scoreRows(models.filter((one) => one.group === group)), "Scores"))] : null,
    categories.length > 1 ? [h("h3", {}, money ? "Share of the value, by category" : "Images accepted, by category"),
      table(["model", ...categories], models.map((one) => [several ? `${one.name} (${s.runs[one.run].name})` : one.name, ...categories.map((name) => { const t = one.categories[name]; return t ? (money ? percent(t.value_usd ? t.revenue_usd / t.value_usd : null) : percent(t.n + t.n_unscored ? t.n_accepted / (t.n + t.n_unscored) : null)) : "–"; })]), "Categories")] : null,
    s.figures.length ? [h("h3", {}, "Figures and tables for papers"), h("p", { class: "muted" }, "live" in document.body.dataset ? "`local-bench report RUN --figures` writes them as SVG, PDF and PNG, with their numbers and the tables, to RUN/exports/." : "SVG, PDF, PNG and their numbers as CSV in figures/; LaTeX, Markdown and CSV in tables/."), h("div", { class: "figures" }, s.figures.map((one) => h("figure", {}, h("a", { href: `figures/${one.file}` }, h("img", { src: `figures/${one.file}`, alt: `Figure: ${one.title}`, loading: "lazy" })))))] : null,
    h("h3", {}, "Runs"), table(["run", "suite", "seed", "tasks", "images", "not generated", "planned", "judges", "acceptance", "root"], s.runs.map((run) => [run.name, run.suite, run.seed, run.n_tasks, run.n_images, run.n_unscored, run.n_planned, run.judges.join(", ") || "none", Object.entries(run.thresholds).map(([k, v]) => `${k} ≥ ${v}`).join(", "), run.root.slice(0, 12)]), "Runs"));
}

/* ---- data of a run */

async function runData(s, r) {
  const run = s.runs[r];
  const [tasks, ...chunks] = await Promise.all([load(`${r}-tasks`), ...Array.from({ length: run.candidate_files }, (_, i) => load(`${r}-candidates-${i}`))]);
  if (!run.rows) {
    run.rows = chunks.flatMap((chunk) => chunk.id.map((id, i) => ({ chunk, i, id })));
    run.search = tasks.id.map((id, t) => `${id} ${tasks.title[t]} ${tasks.brief[t]} ${tasks.category[t]}`.toLowerCase());
  }
  return { run, tasks, rows: run.rows };
}

const at = (row, name) => row.chunk[name][row.i];
const score = (row, name) => row.chunk.scores[name]?.[row.i] ?? null;

function decision(row) {
  if (at(row, "state") === 0) return h("span", { class: "open" }, "not generated yet");
  if (at(row, "state") === -1) return h("span", { class: "open" }, "not generated");
  const word = at(row, "decision");
  return word === 1 ? h("span", { class: "yes" }, "accepted") : word === 0 ? h("span", { class: "no" }, "not accepted") : h("span", { class: "open" }, "unscored");
}

function notes(row) {
  const found = [];
  const words = (bit, yes, no) => (bit === null ? null : bit ? yes : no);
  const truth = words(at(row, "truth"), "ground truth: right", "ground truth: wrong"), people = words(at(row, "people"), "people: accepted", "people: not accepted");
  for (const [bit, text] of [[at(row, "truth"), truth], [at(row, "people"), people]]) if (text) found.push(h("span", { class: at(row, "decision") !== null && bit !== at(row, "decision") ? "no" : null }, text));
  return found.length ? h("span", {}, found.flatMap((one, i) => (i ? [" · ", one] : [one]))) : null;
}

/* ---- gallery */

const PAGE = 48;
const FILTERS = { model: "", category: "", decision: "", disagree: "", score: "", min: "", max: "", sort: "plan", q: "" };

async function gallery(s, r, query) {
  const { run, tasks, rows } = await runData(s, r);
  const chosen = { ...FILTERS, ...Object.fromEntries(query) };
  const option = (value, text, now) => h("option", { value, selected: value === now }, text);
  const select = (name, label, values) => h("label", {}, label, h("select", { name }, values.map(([value, text]) => option(value, text, chosen[name]))));
  const categories = [...new Set(tasks.category)].sort();
  const disagreements = [["", "any"], ...(run.has_people ? [["people", "judge and people differ"]] : []), ...(run.has_truth ? [["truth", "judge and ground truth differ"]] : [])];
  const form = h("form", { class: "filters", role: "search", "aria-label": "Filters" },
    select("model", "model", [["", "all"], ...run.models.map((name) => [name, name])]), select("category", "category", [["", "all"], ...categories.map((name) => [name, name])]),
    select("decision", "decision", [["", "all"], ["accepted", "accepted"], ["rejected", "not accepted"], ["unscored", "unscored"], ["missing", "not generated"]]),
    disagreements.length > 1 ? select("disagree", "disagreement", disagreements) : null,
    select("score", "score", [["", "–"], ...run.scores.map((name) => [name, name])]),
    h("label", {}, "from", h("input", { name: "min", type: "number", step: "any", value: chosen.min })), h("label", {}, "to", h("input", { name: "max", type: "number", step: "any", value: chosen.max })),
    select("sort", "order", [["plan", "as planned"], ["failures", "failures first"], ["up", "score, lowest first"], ["down", "score, highest first"]]),
    h("label", {}, "search in tasks", h("input", { name: "q", type: "search", value: chosen.q })));
  const count = h("p", { "aria-live": "polite" }), cards = h("div", { class: "cards" }), more = h("button", { type: "button", hidden: true }, "Show more");
  show(h("h2", {}, `Gallery${s.runs.length > 1 ? `: ${run.name}` : ""}`), form, count, cards, more);
  let found = [], shown = 0;
  const page = () => {
    cards.append(...found.slice(shown, shown + PAGE).map((row) => card(r, run, tasks, row, chosen.score)));
    shown = Math.min(found.length, shown + PAGE);
    more.hidden = shown >= found.length;
  };
  const apply = () => {
    Object.assign(chosen, Object.fromEntries(new FormData(form)));
    found = filtered(run, tasks, rows, chosen);
    count.textContent = `${plural(found.length, "image")} of ${rows.length.toLocaleString("en-US")}`;
    cards.replaceChildren();
    shown = 0;
    page();
    const used = Object.entries(chosen).filter(([name, value]) => value !== FILTERS[name]);
    history.replaceState(null, "", `${path("gallery", r)}${used.length ? `?${new URLSearchParams(used)}` : ""}`);
  };
  more.addEventListener("click", page);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", apply);
  apply();
}

function filtered(run, tasks, rows, want) {
  const model = want.model ? run.models.indexOf(want.model) : -1;
  const words = want.q.toLowerCase().split(/\s+/).filter(Boolean);
  const [min, max] = [want.min, want.max].map((x) => (x === "" ? null : Number(x)));
  const found = rows.filter((row) => {
    const task = at(row, "task"), word = at(row, "decision"), made = at(row, "state") === 1;
    if (model >= 0 && at(row, "model") !== model) return false;
    if (want.category && tasks.category[task] !== want.category) return false;
    if (want.decision && { accepted: word !== 1, rejected: word !== 0, unscored: !made || word !== null, missing: made }[want.decision]) return false;
    if (want.disagree && (at(row, want.disagree) === null || word === null || at(row, want.disagree) === word)) return false;
    if (want.score && (min !== null || max !== null)) {
      const value = score(row, want.score);
      if (value === null || (min !== null && value < min) || (max !== null && value > max)) return false;
    }
    return words.every((one) => run.search[task].includes(one));
  });
  const badness = (row) => (at(row, "state") !== 1 ? 0 : at(row, "decision") === null ? 1 : at(row, "decision") === 0 ? 2 : 3);
  if (want.sort === "failures") found.sort((a, b) => badness(a) - badness(b));
  if (want.sort === "up" || want.sort === "down") {
    const name = want.score || run.scores[0], sign = want.sort === "up" ? 1 : -1;
    found.sort((a, b) => (score(a, name) === null) - (score(b, name) === null) || sign * (score(a, name) - score(b, name)));
  }
  return found;
}

function card(r, run, tasks, row, name) {
  const sha = at(row, "image"), task = at(row, "task"), model = run.models[at(row, "model")];
  const where = path("task", r, tasks.id[task], row.id);
  const text = `${model}, ${tasks.id[task]}, image ${at(row, "deliverable")}, attempt ${at(row, "attempt")}`;
  return h("article", { class: "card" }, h("a", { class: "shot", href: where }, isDigest(sha) && at(row, "state") === 1 ? h("img", { src: thumb(sha), alt: text, loading: "lazy" }) : "no image"),
    h("b", {}, model), h("span", {}, `${tasks.id[task]} · ${tasks.title[task]}`, at(row, "attempt") > 1 ? ` · attempt ${at(row, "attempt")}` : ""), decision(row), notes(row), name ? h("span", {}, `${name}: ${digits(score(row, name))}`) : null);
}

/* ---- one task */

async function taskPage(s, r, id, target) {
  const { run, tasks, rows } = await runData(s, r);
  const index = tasks.id.indexOf(id);
  if (index < 0) { show(h("h2", {}, "Task"), h("p", {}, `There is no task ${id} in ${run.name}.`)); return; }
  const perFile = Math.ceil(tasks.id.length / run.task_files) || 1;
  let of = null;
  for (const file of [Math.floor(index / 20), Math.floor(index / perFile)]) { of = (await load(`${r}-tasks-${file}`))[id]; if (of) break; }
  const rubrics = await load(`${r}-rubrics`);
  const byId = new Map(of.candidates.map((one) => [one.id, one]));
  const own = rows.filter((row) => at(row, "task") === index);
  const given = [["source", of.source], ["mask", of.mask], ...of.references.map((sha, i) => [`reference ${i + 1}`, sha])].filter(([, sha]) => isDigest(sha));
  const step = (by, word) => { const other = tasks.id[index + by]; return other === undefined ? null : h("a", { href: path("task", r, other) }, word); };
  show(h("p", {}, step(-1, "← previous task"), " ", step(1, "next task →")), h("h2", {}, `${id}: ${of.title}`), h("p", {}, `${of.category}${of.price_usd ? ` · ${usd(of.price_usd)}` : ""} · ${plural(of.deliverables.length, "image")}`),
    h("p", { class: "brief" }, of.brief), of.unscored ? h("p", { class: "open" }, of.unscored) : null,
    of.points.length ? [h("h3", {}, "Evaluation points"), h("ol", {}, of.points.map((one) => h("li", {}, one)))] : null,
    given.length ? [h("h3", {}, "Input images"), h("div", { class: "shots" }, given.map(([name, sha]) => h("figure", {}, frame(sha, name, of), h("figcaption", {}, name))))] : null,
    [...new Set(own.map((row) => at(row, "deliverable")))].sort((a, b) => a - b).map((i) => [h("h3", {}, `Image ${i}: ${of.deliverables[i - 1] ?? "not in the task"}`),
      h("div", { class: "shots" }, own.filter((row) => at(row, "deliverable") === i).sort((a, b) => at(a, "model") - at(b, "model") || at(a, "attempt") - at(b, "attempt")).map((row) => candidate(run, row, byId.get(row.id), rubrics, of)))]));
  if (target) { const element = document.getElementById(`c-${target}`); if (element) { element.scrollIntoView({ block: "center" }); element.classList.add("chosen"); element.focus({ preventScroll: true }); } }
}

function frame(sha, name, task, source = null) {
  return h("button", { class: "frame", type: "button", "aria-label": `${name}: full resolution`, onclick: () => enlarge(sha, name, source) }, h("img", { src: task.previews.includes(sha) ? preview(sha) : thumb(sha), alt: name, loading: "lazy" }));
}

function enlarge(sha, name, source) {
  const close = h("button", { type: "button", onclick: () => large.close() }, "Close");
  const result = h("img", { src: image(sha), alt: name, class: source ? null : "whole" });
  if (!source) large.replaceChildren(result, h("p", {}, name, " ", close));
  else {
    const over = h("img", { src: image(source), alt: "source" });
    const slider = h("input", { type: "range", min: 0, max: 100, value: 50, "aria-label": "Source left of the divider, result right of it", oninput: (event) => { over.style.clipPath = `inset(0 ${100 - event.target.value}% 0 0)`; } });
    over.style.clipPath = "inset(0 50% 0 0)";
    large.replaceChildren(h("div", { class: "pair" }, result, over), slider, h("p", {}, `${name}; left of the divider: the source image`, " ", close));
  }
  large.showModal();
}

function candidate(run, row, of, rubrics, task) {
  const sha = at(row, "image"), model = run.models[at(row, "model")], name = `${model}${at(row, "attempt") > 1 ? `, attempt ${at(row, "attempt")}` : ""}`;
  const scores = run.scores.filter((one) => score(row, one) !== null || of.score_reasons[one]);
  return h("section", { class: "candidate card", id: `c-${row.id}`, tabindex: -1, "aria-label": name },
    at(row, "state") === 1 && isDigest(sha) ? frame(sha, name, task, isDigest(task.source) ? task.source : null) : h("p", { class: "open" }, of.unscored || "not generated yet"),
    h("b", {}, name), decision(row), of.reason ? h("span", {}, of.reason) : null, notes(row),
    scores.length ? h("span", {}, scores.map((one) => `${one} ${score(row, one) === null ? "–" : `${digits(score(row, one))}${of.score_reasons[one] ? ` ${of.score_reasons[one]}` : ""}`}`).join(" · ")) : null,
    scores.some((one) => score(row, one) === null && of.score_reasons[one] && of.score_reasons[one] !== "not applicable") ? h("ul", {}, scores.filter((one) => score(row, one) === null && of.score_reasons[one] && of.score_reasons[one] !== "not applicable").map((one) => h("li", {}, `${one}: ${of.score_reasons[one]}`))) : null,
    of.people.length ? h("details", {}, h("summary", {}, plural(of.people.length, "annotation")), h("ul", {}, of.people.map(([who, what, value]) => h("li", {}, `${who}: ${what} ${value === true ? "accepted" : value === false ? "not accepted" : value}`)))) : null,
    h("details", {}, h("summary", {}, "Prompt and seed"), h("pre", {}, of.prompt), h("p", {}, `seed ${of.seed}`)),
    of.verdicts.length ? h("details", {}, h("summary", {}, plural(of.verdicts.length, "verdict")), of.verdicts.map((one) => verdict(one, rubrics, task))) : null);
}

function verdict(one, rubrics, task) {
  const point = one.rubric === "brf" || one.rubric.startsWith("idea") ? task.points[one.point] : null;
  const text = rubrics[one.rubric]?.[one.sha];
  return h("div", {}, h("p", {}, h("b", {}, one.rubric), point ? `: ${point}` : one.point ? `, point ${one.point + 1}` : "", one.repeat ? `, repeat ${one.repeat + 1}` : "", ` (${one.judge})`),
    h("pre", {}, one.unscored || one.answer), one.labels ? h("pre", {}, one.labels) : null,
    h("details", {}, h("summary", {}, "Raw answer"), h("pre", {}, one.raw || "(empty)", one.cut ? ` … ${one.cut} more characters` : "")),
    text ? h("details", {}, h("summary", {}, "Rubric"), h("pre", {}, text)) : null);
}

/* ---- one model, list of tasks */

async function modelPage(s, r, name) {
  const one = s.models.find((model) => model.run === r && model.name === name);
  if (!one) { show(h("h2", {}, "Model"), h("p", {}, `There is no model ${name}.`)); return; }
  const { run, rows } = await runData(s, r);
  const index = run.models.indexOf(name), own = rows.filter((row) => at(row, "model") === index);
  const link = (text, filters) => h("a", { href: `${path("gallery", r)}?${new URLSearchParams({ model: name, ...filters })}` }, text);
  const n = (test) => own.filter(test).length.toLocaleString("en-US");
  const total = (label, t) => [label, ...(t.value_usd ? [usd(t.revenue_usd), t.low_usd === null ? "–" : `${usd(t.low_usd)} to ${usd(t.high_usd)}`] : ["–", "–"]), `${t.n_tasks_accepted} / ${t.n_tasks}`, `${t.n_accepted} / ${t.n + t.n_unscored}`, t.n_unscored];
  show(h("h2", {}, name), h("p", {}, s.runs.length > 1 ? `${run.name} · ` : "", one.cost_usd === null ? "no cost known" : `cost ${usd(one.cost_usd)}`),
    h("ul", {}, h("li", {}, link(`${n((row) => at(row, "decision") === 1)} accepted`, { decision: "accepted" })), h("li", {}, link(`${n((row) => at(row, "state") === 1 && at(row, "decision") === 0)} not accepted`, { decision: "rejected" })), h("li", {}, link(`${n((row) => at(row, "state") === 1 && at(row, "decision") === null)} unscored`, { decision: "unscored" })), h("li", {}, link(`${n((row) => at(row, "state") !== 1)} not generated`, { decision: "missing" })),
      run.has_people ? h("li", {}, link(`${n((row) => at(row, "people") !== null && at(row, "decision") !== null && at(row, "people") !== at(row, "decision"))} on which judge and people differ`, { disagree: "people" })) : null),
    table(["", "revenue", "95 % interval", "tasks accepted", "images accepted", "unscored"], [total("all", one.total), ...Object.entries(one.categories).map(([label, t]) => total(label, t))], "Totals"),
    h("h3", {}, "Scores"), table(["score", "mean", "95 %", "images", "unscored"], one.scores.map((x) => [x.name, digits(x.mean), x.low === null ? "–" : `${digits(x.low)} to ${digits(x.high)}`, x.n, x.n_unscored]), "Scores"));
}

async function taskList(s, r) {
  const { run, tasks, rows } = await runData(s, r);
  const accepted = new Map();
  for (const row of rows) if (at(row, "attempt") === 1) { const key = at(row, "task"), now = accepted.get(key) || [0, 0]; accepted.set(key, [now[0] + (at(row, "decision") === 1), now[1] + 1]); }
  let shown = 0;
  const body = h("tbody"), more = h("button", { type: "button" }, "Show more");
  const page = () => {
    for (let i = shown; i < Math.min(tasks.id.length, shown + 200); i++) { const [yes, n] = accepted.get(i) || [0, 0]; body.append(h("tr", {}, h("th", { scope: "row" }, h("a", { href: path("task", r, tasks.id[i]) }, tasks.id[i])), h("td", { class: "text" }, tasks.title[i]), h("td", { class: "text" }, tasks.category[i]), h("td", {}, tasks.price_usd[i] ? usd(tasks.price_usd[i]) : "–"), h("td", {}, `${yes} / ${n}`))); }
    shown = Math.min(tasks.id.length, shown + 200);
    more.hidden = shown >= tasks.id.length;
  };
  more.addEventListener("click", page);
  show(h("h2", {}, `Tasks${s.runs.length > 1 ? `: ${run.name}` : ""}`), h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Tasks" }, h("table", {}, h("thead", {}, h("tr", {}, ["task", "title", "category", "price", "images accepted, all models"].map((one, i) => h("th", { scope: "col", class: i === 1 || i === 2 ? "text" : null }, one)))), body)), more);
  page();
}

/* ---- pages */

async function route() {
  const s = await load("summary");
  const [where, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [page = "", run = "0", ...rest] = where.split("/").map((part) => { try { return decodeURIComponent(part); } catch { return part; } });
  const r = Number(run) in s.runs ? Number(run) : 0;
  const links = [["Overview", path("")], ...s.runs.flatMap((one, i) => { const of = s.runs.length > 1 ? ` (${one.name})` : ""; return [[`Gallery${of}`, path("gallery", i)], [`Tasks${of}`, path("tasks", i)]]; })];
  const current = { gallery: path("gallery", r), tasks: path("tasks", r), task: path("tasks", r) }[page] || (page ? null : path(""));
  document.getElementById("nav").replaceChildren(...links.map(([text, href]) => h("a", { href, "aria-current": href === current ? "page" : null }, text)));
  if (large.open) large.close();
  if (page === "gallery") await gallery(s, r, new URLSearchParams(query));
  else if (page === "task") await taskPage(s, r, rest[0], rest[1]);
  else if (page === "tasks") await taskList(s, r);
  else if (page === "model") await modelPage(s, r, rest[0]);
  else overview(s);
}

const start = () => route().catch((error) => show(h("h2", {}, "This page cannot be shown"), h("p", {}, error.message)));
addEventListener("hashchange", () => { start(); scrollTo(0, 0); });
document.addEventListener("keydown", (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey || event.target.matches("input, select, textarea") || large.open) return;
  const links = { ArrowLeft: "← previous task", ArrowRight: "next task →" };
  if (event.key in links) [...main.querySelectorAll("a")].find((one) => one.textContent === links[event.key])?.click();
  if (event.key === "/") { const search = main.querySelector("input[type=search]"); if (search) { search.focus(); event.preventDefault(); } }
});
start();

/* ---- runs in progress: only where a server sends their state */

const clock = (s) => (s === null || s === undefined ? "–" : s < 90 ? `${Math.round(s)} s` : s < 5400 ? `${Math.round(s / 60)} min` : `${(s / 3600).toFixed(1)} h`);

function phaseRow(one) {
  const bar = h("progress", { max: Math.max(one.total, 1), value: one.n, "aria-label": one.phase });
  const rate = one.n && one.seconds ? one.n / one.seconds : null;
  return [h("th", { scope: "row", class: "text" }, one.phase), h("td", {}, bar), `${one.n.toLocaleString("en-US")} / ${one.total.toLocaleString("en-US")}`,
    rate === null ? "–" : rate >= 1 ? `${rate.toFixed(1)} / s` : `${(rate * 60).toFixed(1)} / min`, clock(one.seconds), clock(one.seconds_left)];
}

function liveRun(run) {
  const head = [h("h3", {}, `${run.name}: ${run.running ? "in progress" : "not running"}`)];
  if (run.counts) head.push(h("p", {}, `${run.counts.done.toLocaleString("en-US")} of ${plural(run.counts.candidates, "image")}, ${plural(run.counts.unscored, "image")} not generated, ${plural(run.counts.verdicts, "answer")} of judges.`));
  const phases = run.phases.slice(-4);
  if (phases.length) head.push(table(["phase", "", "done", "rate", "time", "left"], phases.map(phaseRow), `Phases of ${run.name}`));
  if (run.running && run.recent.length) head.push(h("div", { class: "recent", role: "list", "aria-label": "Recent images" }, [...run.recent].reverse().filter((one) => isDigest(one.image)).map((one) =>
    h("img", { role: "listitem", src: `live/${one.image}.png`, alt: `${one.model}, ${one.task}`, title: `${one.model}, ${one.task}` }))));
  return head;
}

async function watch() {
  const box = document.getElementById("live");
  let wait = 3000;
  try {
    const found = await (await fetch("live.json")).json();
    const shown = found.runs.filter((run) => run.running || run.changed);
    box.hidden = !shown.length;
    const gpus = found.devices.map((one) => `${one.name || "GPU"}: ${[one.utilisation === undefined ? null : `${Math.round(100 * one.utilisation)} % busy`, one.power_w === undefined ? null : `${Math.round(one.power_w)} W`, one.memory_total_bytes === undefined ? null : `${(one.memory_used_bytes / 2 ** 30).toFixed(1)} of ${(one.memory_total_bytes / 2 ** 30).toFixed(0)} GiB`].filter(Boolean).join(", ")}`);
    const refresh = shown.some((run) => run.changed) ? h("button", { type: "button", onclick: async (event) => { event.target.disabled = true; event.target.textContent = "Writing…"; await fetch("refresh", { method: "POST" }); location.reload(); } }, "Show the newest results below") : null;
    box.replaceChildren(...[h("h2", {}, "Runs in progress"), ...shown.flatMap(liveRun), gpus.length ? h("p", { class: "muted" }, gpus.join(" · ")) : null, refresh].filter(Boolean));
    if (!found.runs.some((run) => run.running)) wait = 15000;
  } catch {
    box.replaceChildren(h("p", { class: "muted" }, "The server has stopped: the progress is no longer updated."));
    wait = 30000;
  }
  setTimeout(watch, wait);
}

if ("live" in document.body.dataset) watch();
