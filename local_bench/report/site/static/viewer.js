"use strict";
/* The viewer: pages by the part of the address after #, data loaded by script elements when it is needed. Every text
   from a run becomes a text node; nothing is inserted as HTML. */

const loads = new Map(); // name -> promise of data
const waiting = new Map(); // name -> function
window.LB = (name, data) => { waiting.get(name)?.(data); loads.set(name, Promise.resolve(data)); };

/* A file that could not be loaded is requested again by the next page that needs it. */
function load(name) {
  if (!loads.has(name)) loads.set(name, new Promise((done, failed) => {
    waiting.set(name, done);
    const script = document.createElement("script");
    script.src = `data/${name}.js`;
    script.onerror = () => { loads.delete(name); failed(new Error(`data/${name}.js is missing: write the report again`)); };
    document.head.append(script);
  }));
  return loads.get(name);
}

/* An element with attributes (`on…` are listeners) and children; texts become text nodes. */
function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...existing(children));
  return element;
}

const existing = (children) => children.flat(Infinity).filter((one) => one !== null && one !== undefined && one !== false);
const main = document.getElementById("main");
const show = (...children) => main.replaceChildren(...existing(children));
const large = document.getElementById("large");
const usd = (x) => (x === null ? "–" : x.toLocaleString("en-US", { style: "currency", currency: "USD", minimumFractionDigits: Math.abs(x) < 0.01 && x ? 6 : 2 }));
const plural = (n, word) => `${n.toLocaleString("en-US")} ${word}${n === 1 ? "" : "s"}`;
const fixed = (x, decimals) => (x === null || x === undefined ? "–" : x.toFixed(decimals));
const path = (...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;
/* A file's address; in a report of one file all are in INLINE, some thumbnails excepted, and full images are thumbnails. */
const file = (name, address) => (window.INLINE ? window.INLINE[name] ?? "data:," : address);
const image = (run, sha, folder) => file(sha, `${run.full[folder] ?? "images"}/${sha.slice(0, 2)}/${sha}.png`);
const thumb = (sha) => file(sha, `thumbs/${sha.slice(0, 2)}/${sha}.webp`);
const preview = (sha) => file(sha, `previews/${sha.slice(0, 2)}/${sha}.webp`);
const isDigest = (sha) => /^[0-9a-f]{64}$/.test(sha || "");

/* Elements of items in the element `into`, `size` at a time: `more` is the button for the next ones. */
function paged(into, size, made) {
  const more = h("button", { type: "button", hidden: true, onclick: () => page() }, "Show more");
  let items = [], shown = 0;
  const page = () => {
    into.append(...items.slice(shown, shown + size).map(made));
    shown += size;
    more.hidden = shown >= items.length;
  };
  return { more, fill: (all) => { items = all; shown = 0; into.replaceChildren(); page(); } };
}

const ROWS = 200;
const textOf = (cell) => (cell instanceof Element ? cell.dataset.sort ?? cell.textContent : String(cell ?? "–")).trim() || "–";
const NUMBER = /^-?\$?[\d,]*\.?\d+(e[-+]\d+)?( ?\/ ?[\d,]+| (%|[A-Za-z]{1,3}|\/ [a-z]{1,3}))?$/; // no date, digest or name that begins with a digit
const numberOf = (text) => { const [n, of] = NUMBER.test(text) ? text.replace(/[$,]/g, "").split("/").map(Number.parseFloat) : [NaN]; return of ? n / of : n; }; // `19 / 22` and `19/22` are rates

/* A table of rows of texts, numbers and elements (their data-sort, if any, is what they are sorted by). Headings sort it,
   columns without any value are left out, columns of numbers are aligned right, rows after the first ROWS come on demand. */
function table(header, rows, caption, sortable = rows.length > 1) {
  const columns = header.map((text, i) => ({ text, i, keys: rows.map((row) => textOf(row[i])) })).filter(({ i, keys }) => !i || keys.some((key) => key !== "–"));
  for (const column of columns) column.number = column.keys.every((key) => key === "–" || !Number.isNaN(numberOf(key)));
  const body = h("tbody"), order = rows.map((_, i) => i);
  const cell = (value, column) => {
    const made = value instanceof Element && value.matches("td, th") ? value : column.i ? h("td", {}, value ?? "–") : h("th", { scope: "row" }, value);
    made.classList.toggle("text", !column.number);
    return made;
  };
  const { more, fill } = paged(body, ROWS, (at) => h("tr", {}, columns.map((column) => cell(rows[at][column.i], column))));
  const heads = columns.map((column) => h("th", { scope: "col", class: column.number ? null : "text" }, sortable ? h("button", { type: "button", class: "sort", onclick: () => sort(column) }, column.text) : column.text));
  const sort = (column) => {
    const head = heads[columns.indexOf(column)], now = head.getAttribute("aria-sort");
    const up = now ? now === "descending" : !column.number, { keys, number } = column;
    const compare = (a, b) => (number ? numberOf(keys[a]) - numberOf(keys[b]) : keys[a].localeCompare(keys[b], "en", { numeric: true }));
    order.sort((a, b) => (keys[a] === "–") - (keys[b] === "–") || (keys[a] === "–" ? 0 : (up ? 1 : -1) * compare(a, b)) || a - b);
    for (const one of heads) one.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    fill(order);
  };
  fill(order);
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption }, h("table", {}, h("thead", {}, h("tr", {}, heads)), body), more);
}

/* A table as `report.render` writes it, below its title: cells are texts, or have small print, a bar, a mark, an address; `of` completes its label. */
function written(data, heading = "h3", of = "") {
  const cell = (value, i) => {
    if (typeof value === "string") return value;
    const text = value.h ? h("a", { href: value.h }, value.t) : value.t;
    return h(i ? "td" : "th", { scope: i ? null : "row", "data-sort": value.k ?? value.t }, h("span", { class: value.m }, text), value.b && bar(value.b), value.s && h("span", { class: "sub" }, value.s));
  };
  const heads = data.columns.map(([name, about, below]) => h("span", { title: about || null }, name, below && h("span", { class: "sub" }, below)));
  return [h(heading, {}, data.title), table(heads, data.rows.map((row) => row.map(cell)), `${data.title}${of}`), data.notes.map((note) => h("p", { class: "muted" }, note))];
}

/* ---- overview */

/* A fraction of 1 with its interval; the numbers are beside it. */
function bar([value, low, high]) {
  const width = (x) => `${Math.min(100, Math.max(0, 100 * x)).toFixed(1)}%`, fill = h("i"), ends = low === undefined ? null : h("b");
  fill.style.width = width(value);
  if (ends) { ends.style.left = width(low); ends.style.width = width(high - low); }
  return h("span", { class: "bar", "aria-hidden": "true" }, fill, ends);
}

function figure(one) {
  const address = file(one.file, `figures/${one.file}`), shown = h("img", { src: address, alt: `Figure: ${one.title}`, loading: "lazy" });
  shown.style.minWidth = `${one.width_px}px`;
  shown.style.width = `${1.25 * one.width_px}px`;
  const around = window.INLINE ? h("div", { tabindex: 0, class: "scroll" }, shown) : h("a", { href: address, class: "scroll" }, shown); // no link to data:, which browsers do not open
  return h("figure", { class: one.width_px > 600 ? "wide" : null }, around);
}

const paragraphs = (sentences, name = null) => sentences.map((sentence) => h("p", { class: name }, sentence));

function overview(s) {
  show(h("h2", {}, "Overview"),
    s.warnings.length ? h("section", { class: "warnings", "aria-label": "Read with care" }, h("h3", {}, "Read these numbers with care"), h("ul", {}, s.warnings.map((one) => h("li", {}, one)))) : null,
    s.overview.map((group) => [h("h3", {}, group.title), paragraphs(group.sentences, "lead"), group.tables.map((one) => written(one, "h4", s.overview.length > 1 ? `, ${group.title}` : ""))]),
    h("p", { class: "muted" }, "A click on a heading sorts the table. Bold: best; underlined: second best. Small: 95 % intervals for tasks like these and the same decisions, without the judge's errors. Unscored images earn nothing and count as not accepted."),
    s.figures.length ? [h("h3", {}, "Figures"), h("div", { class: "figures" }, s.figures.map(figure)),
      h("p", { class: "muted" }, "`local-bench report RUN --figures` writes all figures as SVG, PDF and PNG, with their numbers and the tables, to RUN/exports/; `report RUN… --out FOLDER` to the site's folder.")] : null,
    written(s.about));
}

/* ---- sections of a run: judges, costs, provenance and more */

async function sectionPage(s, r, name) {
  const sections = await load(`${r}-sections`), one = sections.find((section) => section.name === name) || sections[0];
  const links = sections.map((section) => h("a", { href: path("details", r, section.name), "aria-current": section === one ? "page" : null }, section.title));
  show(h("h2", {}, `Details${s.runs.length > 1 ? ` of ${s.runs[r].name}` : ""}`), h("nav", { "aria-label": "Details" }, links), h("h3", {}, one.title),
    paragraphs(one.sentences), one.tables.map((data) => written(data, "h4")));
}

/* ---- data of a run */

async function runData(s, r) {
  const run = s.runs[r];
  const [tasks, ...chunks] = await Promise.all([load(`${r}-tasks`), ...Array.from({ length: run.candidate_files }, (_, i) => load(`${r}-candidates-${i}`))]);
  if (!run.rows) {
    run.rows = chunks.flatMap((chunk) => chunk.id.map((id, i) => ({ chunk, i, id })));
    run.search = tasks.id.map((id, t) => `${id} ${tasks.title[t]} ${tasks.text[t]} ${tasks.category[t]}`.toLowerCase());
  }
  return { run, tasks, rows: run.rows };
}

const at = (row, name) => row.chunk[name][row.i];
const score = (row, name) => row.chunk.scores[name]?.[row.i] ?? null;
const by = (...names) => (a, b) => names.reduce((order, name) => order || at(a, name) - at(b, name), 0);
const differs = (row, name) => at(row, name) !== null && at(row, "decision") !== null && at(row, name) !== at(row, "decision");
const isMade = (row) => at(row, "state") === 1 && isDigest(at(row, "image"));

function decision(row) {
  if (at(row, "state") === 0) return h("span", { class: "open" }, "not generated yet");
  if (at(row, "state") === -1) return h("span", { class: "open" }, "not generated");
  const word = at(row, "decision");
  return word === 1 ? h("span", { class: "yes" }, "accepted") : word === 0 ? h("span", { class: "no" }, "not accepted") : h("span", { class: "open" }, "unscored");
}

function notes(row) {
  const words = { truth: ["ground truth: wrong", "ground truth: right"], people: ["people: not accepted", "people: accepted"] };
  const found = Object.keys(words).filter((name) => at(row, name) !== null).map((name) => h("span", { class: differs(row, name) ? "no" : null }, words[name][at(row, name)]));
  return found.length ? h("span", {}, found.flatMap((one, i) => (i ? [" · ", one] : [one]))) : null;
}

/* ---- gallery */

const PAGE = 48, SIGN = { up: 1, down: -1 }; // of orders by score
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
    select("sort", "order", [["plan", "by task"], ["failures", "failures first"], ["up", "score, lowest first"], ["down", "score, highest first"]]),
    h("label", {}, "search in tasks", h("input", { name: "q", type: "search", value: chosen.q })));
  const count = h("p", { "aria-live": "polite" }), cards = h("div", { class: "cards" });
  const { more, fill } = paged(cards, PAGE, (row) => card(r, run, tasks, row, chosen.score));
  show(h("h2", {}, `Gallery${s.runs.length > 1 ? `: ${run.name}` : ""}`), form, count, cards, more);
  const { score: name, min, max, sort } = form.elements;
  const apply = (event) => {
    if (event?.target === name && !name.value) { min.value = max.value = ""; if (sort.value in SIGN) sort.value = "plan"; }
    else if (!name.value && (min.value || max.value || sort.value in SIGN)) name.value = run.scores[0] ?? "";
    Object.assign(chosen, FILTERS, Object.fromEntries(new FormData(form)));
    const found = filtered(run, tasks, rows, chosen);
    count.textContent = `${plural(found.length, "image")} of ${rows.length.toLocaleString("en-US")}`;
    fill(found);
    const used = Object.entries(chosen).filter(([name, value]) => value !== FILTERS[name]);
    history.replaceState(null, "", `${path("gallery", r)}${used.length ? `?${new URLSearchParams(used)}` : ""}`);
  };
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", apply);
  apply();
}

function filtered(run, tasks, rows, want) {
  const model = want.model ? run.models.indexOf(want.model) : -1;
  const words = want.q.toLowerCase().split(/\s+/).filter(Boolean);
  const [min, max] = [want.min, want.max].map((x) => (x === "" ? null : Number(x)));
  const found = rows.filter((row) => {
    const task = at(row, "task"), word = at(row, "decision"), made = at(row, "state") === 1, value = score(row, want.score);
    if (model >= 0 && at(row, "model") !== model) return false;
    if (want.category && tasks.category[task] !== want.category) return false;
    if (want.decision && { accepted: word !== 1, rejected: word !== 0, unscored: !made || word !== null, missing: made }[want.decision]) return false;
    if (want.disagree && !differs(row, want.disagree)) return false;
    if ((min !== null || max !== null) && (value === null || (min !== null && value < min) || (max !== null && value > max))) return false;
    return words.every((one) => run.search[task].includes(one));
  });
  const badness = (row) => (at(row, "state") !== 1 ? 0 : at(row, "decision") === null ? 1 : at(row, "decision") === 0 ? 2 : 3);
  found.sort(by("task", "deliverable", "model", "attempt"));
  if (want.sort === "failures") found.sort((a, b) => badness(a) - badness(b));
  const sign = SIGN[want.sort], of = (row) => score(row, want.score);
  if (sign) found.sort((a, b) => (of(a) === null) - (of(b) === null) || sign * (of(a) - of(b)));
  return found;
}

function card(r, run, tasks, row, name) {
  const sha = at(row, "image"), task = at(row, "task"), model = run.models[at(row, "model")];
  const where = path("task", r, tasks.id[task], row.id);
  const text = `${model}, ${tasks.id[task]}, image ${at(row, "deliverable")}, attempt ${at(row, "attempt")}`;
  return h("article", { class: "card" }, h("a", { class: "shot", href: where }, isMade(row) ? h("img", { src: thumb(sha), alt: text, loading: "lazy" }) : "no image"),
    h("b", {}, model), h("span", {}, `${tasks.id[task]} · ${tasks.title[task]}`, tasks.n[task] > 1 && ` · image ${at(row, "deliverable")}`, at(row, "attempt") > 1 ? ` · attempt ${at(row, "attempt")}` : ""), decision(row), notes(row), name ? h("span", {}, `${name}: ${fixed(score(row, name), run.decimals[name])}`) : null);
}

/* ---- one task */

async function taskPage(s, r, id, target) {
  const { run, tasks, rows } = await runData(s, r);
  const index = tasks.id.indexOf(id);
  if (index < 0) { show(h("h2", {}, "Task"), h("p", {}, `There is no task ${id} in ${run.name}.`)); return; }
  const of = (await load(`${r}-tasks-${Math.floor(index / 20)}`))[id]; // details.TASKS_PER_FILE
  const rubrics = await load(`${r}-rubrics`);
  const byId = new Map(of.candidates.map((one) => [one.id, one]));
  const own = rows.filter((row) => at(row, "task") === index).sort(by("deliverable", "model", "attempt"));
  const given = [["source", of.source], ["mask", of.mask], ...of.references.map((sha, i) => [`reference ${i + 1}`, sha])].filter(([, sha]) => isDigest(sha));
  const all = given.map(([name, sha]) => ({ run, name, sha, about: "input image" }));
  for (const row of own.filter(isMade)) all.push({ run, name: label(run, row, of), sha: at(row, "image"), deliverable: at(row, "deliverable"), row, of: byId.get(row.id) });
  const step = (n, word) => { const other = tasks.id[index + n]; return other === undefined ? null : h("a", { href: path("task", r, other) }, word); };
  show(h("p", {}, step(-1, "← previous task"), " ", step(1, "next task →")), h("h2", {}, `${id}: ${of.title}`), h("p", {}, `${of.category}${of.price_usd ? ` · ${usd(of.price_usd)}` : ""} · ${plural(of.deliverables.length, "image")}`),
    h("p", { class: "brief" }, of.brief), of.notes.length ? h("ul", {}, of.notes.map((one) => h("li", {}, one))) : null, of.unscored ? h("p", { class: "open" }, of.unscored) : null,
    of.points.length ? [h("h3", {}, "Evaluation points"), h("ol", {}, of.points.map((one) => h("li", {}, one)))] : null,
    given.length ? [h("h3", {}, "Input images"), h("div", { class: "shots" }, given.map(([name, sha], i) => h("figure", {}, frame(sha, name, of, () => enlarge(all, i)), h("figcaption", {}, name))))] : null,
    [...new Set(own.map((row) => at(row, "deliverable")))].map((i) => [h("h3", {}, `Image ${i}: ${of.deliverables[i - 1] ?? "not in the task"}`),
      h("div", { class: "shots" }, own.filter((row) => at(row, "deliverable") === i).map((row) => candidate(run, row, byId.get(row.id), rubrics, of, all)))]));
  if (target) { const element = document.getElementById(`c-${target}`); if (element) { element.scrollIntoView({ block: "center" }); element.classList.add("chosen"); element.focus({ preventScroll: true }); } }
}

const label = (run, row, task) => `${run.models[at(row, "model")]}${at(row, "attempt") > 1 ? `, attempt ${at(row, "attempt")}` : ""}${task.deliverables.length > 1 ? `, image ${at(row, "deliverable")}` : ""}`;

function frame(sha, name, task, onclick) {
  return h("button", { class: "frame", type: "button", "aria-label": `${name}: full resolution`, onclick }, h("img", { src: task.previews.includes(sha) ? preview(sha) : thumb(sha), alt: name, loading: "lazy" }));
}

/* What decided: accepted, or the thresholds that are missed, or why it is undecided. */
const why = (row, of) => h("span", {}, decision(row), of.missed.length ? `: ${of.missed.join(", ")}` : of.reason ? `: ${of.reason}` : null);

/* Two of `all` images of a task at full resolution: the chosen one, and its source or the next model's. */
function enlarge(all, first) {
  const { deliverable } = all[first];
  const other = all.findIndex((one, i) => i !== first && (one.name === "source" || (one.row && (!deliverable || one.deliverable === deliverable))));
  const button = (attributes, ...text) => h("button", { type: "button", ...attributes }, text);
  const tools = h("div", { class: "tools", role: "group", "aria-label": "View" }, [["single", "One image"], ["side", "Side by side", "d"], ["slider", "Slider", "s"], ["flicker", "Flicker", "f"]].map(([mode, text, key]) => (all.length > 1 || mode === "single") && button({ "data-mode": mode }, text, key && [" ", h("kbd", {}, key)])),
    [["out", "−", "Zoom out"], ["in", "+", "Zoom in"], ["fit", "Fit"], ["actual", "1:1"]].map(([zoom, text, name]) => button({ "data-zoom": zoom, "aria-label": name }, text)), h("span", { id: "zoom", "aria-live": "polite" }), button({ onclick: () => large.close() }, "Close"));
  const pane = (side) => h("figure", { class: `pane ${side}` }, h("div", { class: "frame" }, h("img", { alt: side, draggable: "false" })));
  const stage = h("div", { class: "stage", role: "group", tabindex: 0, autofocus: true, "aria-label": "Images; arrow keys move them", "data-mode": other < 0 ? "single" : "side" }, pane("left"), pane("right"));
  const choice = (side, index) => {
    const about = h("span"), select = h("select", { "aria-label": `${side} image`, onchange: () => pick() }, all.map((one, i) => h("option", { value: i, selected: i === index }, one.name)));
    const pick = () => {
      const one = all[select.value], shown = stage.querySelector(`.${side} img`);
      shown.src = image(one.run, one.sha, one.row ? "images" : "inputs");
      shown.alt = one.name;
      about.replaceChildren(one.row ? why(one.row, one.of) : one.about);
    };
    pick();
    return h("div", { class: side }, select, " ", about);
  };
  large.replaceChildren(tools, h("div", { class: "choices" }, choice("left", first), choice("right", other < 0 ? first : other)), stage,
    h("label", { class: "divider", hidden: true }, "Divider ", h("input", { type: "range", id: "divider", min: 0, max: 100, value: 50 })));
  large.showModal();
  viewer.attach(large);
}
large.addEventListener("close", () => clearInterval(viewer.timer));
large.addEventListener("keydown", (event) => { if (!event.altKey && !event.ctrlKey && !event.metaKey && !event.target.matches("select, input") && viewer.key(event)) event.preventDefault(); });

function candidate(run, row, of, rubrics, task, all) {
  const sha = at(row, "image"), name = label(run, row, task);
  const scores = run.scores.filter((one) => score(row, one) !== null || of.score_reasons[one]);
  const unscored = scores.filter((one) => score(row, one) === null && of.score_reasons[one] !== "not applicable");
  return h("section", { class: "candidate card", id: `c-${row.id}`, tabindex: -1, "aria-label": name },
    isMade(row) ? frame(sha, name, task, () => enlarge(all, all.findIndex((one) => one.row === row))) : h("p", { class: "open" }, of.unscored || "not generated yet"),
    h("b", {}, name), why(row, of), notes(row), of.match ? h("span", {}, `ground truth: ${of.match} of what was ordered`) : null, of.inputs ? h("span", {}, of.inputs) : null,
    scores.length ? h("span", {}, scores.map((one) => `${one} ${score(row, one) === null ? "–" : `${fixed(score(row, one), run.decimals[one])}${of.score_reasons[one] ? ` ${of.score_reasons[one]}` : ""}`}`).join(" · ")) : null,
    unscored.length ? h("ul", {}, unscored.map((one) => h("li", {}, `${one}: ${of.score_reasons[one]}`))) : null,
    of.people.length ? h("details", {}, h("summary", {}, plural(new Set(of.people.map(([who]) => who)).size, "annotator")), h("ul", {}, of.people.map(([who, what, value]) => h("li", {}, `${who}: ${what} ${value === true ? "accepted" : value === false ? "not accepted" : value}`)))) : null,
    h("details", {}, h("summary", {}, "Prompt and seed"), h("pre", {}, of.prompt), h("p", {}, `seed ${of.seed}`)),
    of.verdicts.length ? h("details", {}, h("summary", {}, plural(of.verdicts.length, "verdict")), of.verdicts.map((one) => verdict(one, rubrics, task))) : null);
}

function verdict(one, rubrics, task) {
  const point = one.rubric === "brf" || one.rubric.startsWith("idea") ? task.points[one.point] : null;
  const text = rubrics[one.rubric]?.[one.sha];
  return h("div", {}, h("p", {}, h("b", {}, one.rubric), point ? `: ${point}` : one.point ? `, point ${one.point + 1}` : "", one.repeat ? (one.rubric === "cns_set" ? ", set in the other order" : `, repeat ${one.repeat + 1}`) : "", ` (${one.judge})`),
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
  show(h("h2", {}, name), s.runs.length > 1 ? h("p", {}, run.name) : null,
    h("ul", {}, h("li", {}, link(`${n((row) => at(row, "decision") === 1)} accepted`, { decision: "accepted" })), h("li", {}, link(`${n((row) => at(row, "state") === 1 && at(row, "decision") === 0)} not accepted`, { decision: "rejected" })), h("li", {}, link(`${n((row) => at(row, "state") === 1 && at(row, "decision") === null)} unscored`, { decision: "unscored" })), h("li", {}, link(`${n((row) => at(row, "state") !== 1)} not generated`, { decision: "missing" })),
      run.has_people ? h("li", {}, link(`${n((row) => differs(row, "people"))} on which judge and people differ`, { disagree: "people" })) : null),
    one.tables.map((data) => written(data)));
}

async function taskList(s, r) {
  const { run, tasks, rows } = await runData(s, r);
  const found = tasks.id.map(() => [0, 0]);
  for (const row of rows) if (at(row, "attempt") === 1) { const of = found[at(row, "task")]; of[0] += at(row, "decision") === 1; of[1] += 1; }
  show(h("h2", {}, `Tasks${s.runs.length > 1 ? `: ${run.name}` : ""}`), table(["task", "title", "category", "price", `${rows.some((row) => at(row, "attempt") > 1) ? "first attempts" : "images"} accepted, all models`],
    tasks.id.map((id, i) => [h("a", { href: path("task", r, id) }, id), tasks.title[i], tasks.category[i], tasks.price_usd[i] ? usd(tasks.price_usd[i]) : null, found[i].join(" / ")]), "Tasks"));
}

/* ---- pages */

async function route() {
  const s = await load("summary");
  const [where, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [page = "", run = "0", ...rest] = where.split("/").map((part) => { try { return decodeURIComponent(part); } catch { return part; } });
  const r = Number(run) in s.runs ? Number(run) : 0;
  const links = [["Overview", path("")], ...s.runs.flatMap((one, i) => { const of = s.runs.length > 1 ? ` (${one.name})` : ""; return [[`Gallery${of}`, path("gallery", i)], [`Tasks${of}`, path("tasks", i)], [`Details${of}`, path("details", i)]]; })];
  const current = { gallery: path("gallery", r), tasks: path("tasks", r), task: path("tasks", r), details: path("details", r) }[page] || (page ? null : path(""));
  document.getElementById("nav").replaceChildren(...links.map(([text, href]) => h("a", { href, "aria-current": href === current ? "page" : null }, text)));
  if (large.open) large.close();
  if (page === "gallery") await gallery(s, r, new URLSearchParams(query));
  else if (page === "task") await taskPage(s, r, rest[0], rest[1]);
  else if (page === "tasks") await taskList(s, r);
  else if (page === "details") await sectionPage(s, r, rest[0]);
  else if (page === "model") await modelPage(s, r, rest[0]);
  else overview(s);
}

let turn = Promise.resolve(); // one page after the other: data of an earlier one may come later
const start = () => { turn = turn.then(route).catch((error) => show(h("h2", {}, "This page cannot be shown"), h("p", {}, error.message))); };
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
  return [h("th", { scope: "row", class: "text" }, one.phase), h("td", { "data-sort": one.n }, bar), `${one.n.toLocaleString("en-US")} / ${one.total.toLocaleString("en-US")}`,
    rate === null ? "–" : rate >= 1 ? `${rate.toFixed(1)} / s` : `${(rate * 60).toFixed(1)} / min`, clock(one.seconds), clock(one.seconds_left)];
}

function liveRun(run) {
  const head = [h("h3", {}, `${run.name}: ${run.running ? "in progress" : "not running"}`)];
  if (run.counts) head.push(h("p", {}, `${run.counts.done.toLocaleString("en-US")} of ${plural(run.counts.candidates, "image")}, ${plural(run.counts.unscored, "image")} not generated, ${plural(run.counts.verdicts, "answer")} of judges.`));
  const phases = run.phases.slice(-4);
  if (phases.length) head.push(table(["phase", "", "done", "rate", "time", "left"], phases.map(phaseRow), `Phases of ${run.name}`, false));
  if (run.running && run.recent.length) head.push(h("div", { class: "recent", role: "list", "aria-label": "Recent images" }, [...run.recent].reverse().filter((one) => isDigest(one.image)).map((one) =>
    h("img", { role: "listitem", src: `live/${one.image}.png`, alt: `${one.model}, ${one.task}`, title: `${one.model}, ${one.task}` }))));
  return head;
}

async function watch() {
  const box = document.getElementById("live");
  let wait = 3000;
  try {
    const answer = await fetch("live.json"), found = answer.status < 500 ? await answer.json() : null;
    if (!found) { setTimeout(watch, wait); return; } // the last state stays
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
