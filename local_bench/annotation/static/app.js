"use strict";
/* The annotation page: shows items, compares images, and sends answers.

   An answer is first put into a queue in localStorage and removed from it when the server has confirmed it, so that
   answers given while the server cannot be reached are sent later. Requests have ids, so sending twice stores once. */

const body = document.body;
const texts = JSON.parse(body.dataset.texts);
const csrf = document.querySelector("meta[name=csrf]").content;
const storageKey = `local-bench:${body.dataset.protocol}:${body.dataset.me}`;
const main = document.getElementById("task");
const notice = document.getElementById("notice");
const AHEAD = 4;

const state = {
  items: [], // loaded ahead; the first is on the screen
  pending: JSON.parse(localStorage.getItem(storageKey) || "[]"),
  sending: false,
  last: null, // number of the latest answer on the server
  counts: { done: 0, left: 0 },
  moreLater: false,
  times: [], // of answers in this session
  shownAt: 0,
  hiddenMs: 0,
  hiddenAt: null,
  began: Date.now(),
  refused: false,
  blocked: "", // why the server does not take answers of this page
  loads: 0, // number of the latest request for items
  answered: new Set(), // in this session
};

const fill = (text, values) => text.replace(/\{(\w+)\}/g, (_, name) => values[name]);
const uuid = () => [...crypto.getRandomValues(new Uint8Array(16))].map((b) => b.toString(16).padStart(2, "0")).join("");

function say(text, warn = false) {
  notice.textContent = text;
  notice.classList.toggle("warn", warn);
}

async function request(path, options = {}) {
  const response = await fetch(path, { headers: { Accept: "application/json" }, ...options });
  let data = {};
  try { data = await response.json(); } catch { /* not JSON */ }
  return { status: response.status, data };
}

const post = (path, value) =>
  request(path, {
    method: "POST",
    headers: { Accept: "application/json", "Content-Type": "application/json", "X-CSRF-Token": csrf },
    body: JSON.stringify(value),
  });

/* ---- loading and showing items */

const name = (item) => `${item.kind} ${item.item_id}`;
const same = (a, b) => name(a) === name(b);

async function load() {
  const number = ++state.loads;
  const { status, data } = await request(`/queue?n=${AHEAD}`);
  if (number !== state.loads) return true; // a later request is under way
  if (status !== 200) { say(data.error || texts.link_invalid, true); return false; }
  const kept = state.items.slice(0, 1);
  const known = [...kept, ...state.pending];
  const fresh = data.items.filter((one) => !state.answered.has(name(one)) && !known.some((other) => same(one, other)));
  state.items = [...kept, ...fresh];
  state.counts = data.progress;
  state.last = data.last;
  state.moreLater = data.more_later;
  for (const one of fresh) {
    for (const [, src] of one.html.matchAll(/(?:src|data-left|data-right)="(\/image\/[0-9a-f]+)"/g)) new Image().src = src;
  }
  showCounts();
  return true;
}

function showCounts() {
  const { done, left } = state.counts;
  Object.assign(document.getElementById("bar"), { max: Math.max(1, done + left), value: done });
  document.getElementById("counts").textContent = fill(texts.progress, { done, left });
  const recent = state.times.slice(-20);
  if (recent.length > 4) {
    const perHour = Math.round(((recent.length - 1) * 3600e3) / Math.max(1, recent.at(-1) - recent[0]));
    document.getElementById("pace").textContent = `· ${fill(texts.pace, { n: perHour })}`;
  }
  document.getElementById("undo").disabled = state.last === null;
}

function show(given = null) {
  const item = state.items[0];
  if (!item) { finished(); return; }
  main.innerHTML = item.html; // escaped by the server's templates
  main.querySelector("article").dataset.kind = item.kind;
  state.shownAt = performance.now();
  state.hiddenMs = 0;
  viewer.attach(main.querySelector(".viewer"));
  answers.attach(main.querySelector("form"), item, given);
  main.focus({ preventScroll: true });
}

function finished() {
  main.innerHTML = '<section class="finished"><p></p><button type="button"></button></section>';
  main.querySelector("p").textContent = state.moreLater ? texts.nothing_now : texts.nothing;
  const again = main.querySelector("button");
  again.textContent = texts.retry;
  again.addEventListener("click", start);
  clearTimeout(state.again);
  state.again = setTimeout(() => { if (!main.querySelector("article")) start(); }, 15000);
  main.focus({ preventScroll: true });
}

async function start() {
  try {
    await flush();
    if (await load()) show();
  } catch { say(fill(texts.offline, { n: state.pending.length }), true); setTimeout(start, 3000); }
}

/* ---- sending answers */

const store = () => localStorage.setItem(storageKey, JSON.stringify(state.pending));

/* Send the waiting answers in order. Returns whether none is left. */
async function flush() {
  if (state.sending) return false;
  state.sending = true;
  state.blocked = "";
  try {
    while (state.pending.length) {
      const { status, data } = await post("/answer", state.pending[0]);
      if (status === 200 || status === 409 || status === 422 || status === 413) {
        state.pending.shift();
        store();
        if (status === 409) say(texts.stale, true);
        else if (status !== 200) { say(fill(texts.refused, { why: data.error || status }), true); state.refused = true; }
      } else if (status === 403 || status === 400) { say(state.blocked = data.error || texts.link_invalid, true); return false; }
      else throw new Error(`status ${status}`);
    }
    return true;
  } finally { state.sending = false; }
}

let retryMs = 2000;
async function retry() {
  try {
    if (await flush()) { say(texts.online); retryMs = 2000; await load(); if (!main.querySelector("article")) show(); return; }
  } catch { /* still not reachable */ }
  retryMs = Math.min(30000, retryMs * 1.7);
  setTimeout(retry, retryMs);
}

async function submit(answer) {
  const item = state.items[0];
  const now = performance.now();
  const hidden = state.hiddenMs + (state.hiddenAt === null ? 0 : now - state.hiddenAt);
  answer = { ...answer, request_id: uuid(), item_id: item.item_id, kind: item.kind, left: item.left,
    elapsed_ms: Math.min(86400000, Math.max(0, Math.round(now - state.shownAt - hidden))) };
  state.pending.push(answer);
  store();
  say(texts.saving);
  main.inert = true;
  state.refused = false;
  let offline = true;
  try { offline = !(await flush()) && state.pending.length > 0; } catch { /* not reachable */ }
  main.inert = false;
  if (state.refused) return; // the answer stays on the screen
  state.answered.add(name(item));
  state.items.shift();
  state.times.push(Date.now());
  state.counts = { done: state.counts.done + 1, left: Math.max(0, state.counts.left - 1) };
  if (offline) {
    say(state.blocked || fill(texts.offline, { n: state.pending.length }), true);
    if (state.pending.length === 1) setTimeout(retry, retryMs);
  } else {
    if (notice.textContent === texts.saving) say(texts.saved);
    const loading = load().catch(() => false);
    if (!state.items.length || state.last === null) await loading;
  }
  showCounts();
  show();
  remindOfBreak();
}

async function undo() {
  if (state.last === null) { say(texts.nothing_to_undo, true); return; }
  try {
    if (!(await flush())) throw new Error("waiting answers");
    await load();
    const { status, data } = await post("/undo", { number: state.last });
    if (status !== 200) { say(data.error, true); return; }
    state.items = [data, ...state.items.filter((one) => !same(one, data))];
    state.answered.delete(name(data));
    const { data: now } = await request("/queue?n=1");
    state.last = now.last;
    state.counts = now.progress;
    showCounts();
    show(data.given);
    say(texts.undone);
  } catch { say(texts.undo_failed, true); }
}

function remindOfBreak() {
  const minutes = Math.round((Date.now() - state.began) / 60000);
  if (minutes < Number(body.dataset.breakMinutes)) return;
  const pause = document.getElementById("pause");
  pause.textContent = fill(texts.break, { minutes });
  pause.hidden = false;
  state.began = Date.now();
  setTimeout(() => { pause.hidden = true; }, 120000);
}

/* ---- the form */

const answers = {
  attach(form, item, given) {
    this.form = form;
    this.item = item;
    this.fields = [...form.querySelectorAll(".field")];
    if (given) this.restore(given);
    form.addEventListener("submit", (event) => { event.preventDefault(); this.submit(); });
    form.addEventListener("change", (event) => {
      const field = event.target.closest(".field");
      if (field) { this.cannotTell(null); this.makeCurrent(field); }
    });
    form.addEventListener("focusin", (event) => {
      const field = event.target.closest(".field");
      if (field && field !== this.current) this.makeCurrent(field);
    });
    form.querySelector(".clear").addEventListener("click", () => { this.cannotTell(null); form.querySelector(".cannot").open = false; });
    this.makeCurrent(this.fields.find((field) => !this.chosen(field)) || this.fields[0]);
  },
  restore(given) {
    for (const field of this.fields) {
      const values = given.values[field.closest(".for").dataset.key] || {};
      for (const input of field.querySelectorAll("input")) {
        input.checked = field.dataset.field in values && JSON.parse(input.dataset.value) === values[field.dataset.field];
      }
    }
    for (const input of this.form.querySelectorAll("[name=reason]")) input.checked = given.reasons.includes(input.value);
    this.form.querySelector("textarea").value = given.note;
    const open = { tags: given.reasons.length, note: given.note, cannot: given.cannot_tell };
    for (const [name, wanted] of Object.entries(open)) {
      const details = this.form.querySelector(`.${name}`);
      if (details) details.open = Boolean(wanted);
    }
    this.cannotTell(given.cannot_tell);
  },
  chosen: (field) => field.querySelector("input:checked"),
  cannotTell(value) {
    for (const input of this.form.querySelectorAll("[name=cannot]")) input.checked = input.value === value;
  },
  makeCurrent(field) {
    this.current = field;
    for (const one of this.fields) one.classList.toggle("current", one === field);
    const group = field.closest(".for");
    for (const one of this.form.querySelectorAll(".for")) one.classList.toggle("current", one === group);
    if (group.dataset.key) viewer.select(Number(group.dataset.index));
    field.scrollIntoView({ block: "nearest" });
  },
  /* A shortcut key: an option of the current field, else of the first field of the same image that has the key. */
  key(key) {
    const group = this.current.closest(".for");
    const own = [this.current, ...group.querySelectorAll(".field")];
    const input = own.flatMap((field) => [...field.querySelectorAll("input")]).find((one) => one.dataset.key === key);
    if (!input) return false;
    input.checked = true;
    this.cannotTell(null);
    const field = input.closest(".field");
    if (this.item.direct) this.submit();
    else this.makeCurrent(this.fields.find((one) => !this.chosen(one)) || field);
    return true;
  },
  selectImage(index) {
    const groups = [...this.form.querySelectorAll(".for")];
    if (groups[index] && groups[index].dataset.key) this.makeCurrent(groups[index].querySelector(".field"));
  },
  submit() {
    const cannot = this.form.querySelector("[name=cannot]:checked");
    const values = {};
    if (!cannot) {
      const open = this.fields.find((field) => !this.chosen(field));
      if (open) { this.makeCurrent(open); open.querySelector("input").focus(); say(texts.incomplete, true); return; }
      for (const field of this.fields) {
        const key = field.closest(".for").dataset.key;
        (values[key] ||= {})[field.dataset.field] = JSON.parse(this.chosen(field).dataset.value);
      }
    }
    submit({
      values, cannot_tell: cannot ? cannot.value : null, note: this.form.querySelector("textarea").value,
      reasons: [...this.form.querySelectorAll("[name=reason]:checked")].map((one) => one.value),
    });
  },
  open(name) {
    const details = this.form.querySelector(`.${name}`);
    if (!details) return;
    details.open = true;
    details.querySelector("input, textarea").focus();
  },
};

viewer.failed = () => say(texts.image_failed, true);
viewer.chosen = (index) => answers.selectImage(index);

/* ---- keyboard */

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey && event.key === "Enter" && event.target.tagName === "TEXTAREA") { event.preventDefault(); if (!event.repeat) answers.submit(); return; }
  if (event.altKey || event.ctrlKey || event.metaKey || main.inert) return;
  const typing = event.target.matches("textarea, select, input[type=range]");
  if (event.key === "Escape" && event.target.matches("textarea")) { main.focus(); return; }
  if (typing || document.querySelector("dialog[open]")) return;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (event.repeat) { // a held key answers one image
    if (key === "Enter" || (main.querySelector("article") && viewer.key(event))) event.preventDefault();
    return;
  }
  const ofPage = { "?": () => open("legend"), g: () => open("guidelines"), z: undo };
  if (key in ofPage) { ofPage[key](); event.preventDefault(); return; }
  if (!main.querySelector("article")) return;
  const control = event.target.matches("button, summary, a, input");
  if (key === "Enter" && (!control || event.target.matches("input"))) { answers.submit(); event.preventDefault(); return; }
  const actions = { c: () => answers.open("cannot"), n: () => answers.open("note"), t: () => answers.open("tags") };
  if (answers.key(key) || (key in actions && (actions[key](), true)) || viewer.key(event)) event.preventDefault();
});

/* ---- the frame of the page */

function open(id) { document.getElementById(id).showModal(); }
for (const button of document.querySelectorAll("[data-opens]")) button.addEventListener("click", () => open(button.dataset.opens));
for (const button of document.querySelectorAll("[data-closes]")) button.addEventListener("click", () => button.closest("dialog").close());
document.getElementById("undo").addEventListener("click", undo);
document.getElementById("language").addEventListener("change", async (event) => {
  try { await post("/language", { language: event.target.value }); location.reload(); }
  catch { say(texts.undo_failed, true); }
});
document.addEventListener("visibilitychange", () => {
  if (document.hidden) state.hiddenAt = performance.now();
  else if (state.hiddenAt !== null) { state.hiddenMs += performance.now() - state.hiddenAt; state.hiddenAt = null; }
});
addEventListener("beforeunload", (event) => { if (state.pending.length) event.preventDefault(); });

if (localStorage.getItem(`${storageKey}:guidelines`) === null) {
  open("guidelines");
  localStorage.setItem(`${storageKey}:guidelines`, "shown");
}
start();
