"use strict";
/* Images at full resolution next to each other, below a slider, or in turn (flicker), with one zoom and position for all.
   Shared by the annotation page and the site. `viewer.attach(root)` takes an element with
   .stage[data-mode] of .pane.input, .pane.left, .pane.right (each with .frame img), buttons with data-mode and data-zoom,
   .divider with #divider, #zoom, and .set of buttons with data-left and data-right. */

const ARROWS = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] };

const viewer = {
  failed() {}, // an image could not be loaded
  chosen() {}, // the image with this index was chosen
  attach(root) {
    this.root = root;
    this.stage = root.querySelector(".stage");
    this.images = [...root.querySelectorAll(".frame img")];
    this.set = [...root.querySelectorAll(".set button")];
    this.inputs = [...document.querySelectorAll(".thumb")];
    this.index = -1;
    Object.assign(this, { scale: 1, x: 0, y: 0 });
    clearInterval(this.timer);
    const chosen = this.inputs.find((one) => one.getAttribute("aria-pressed") === "true");
    if (chosen) this.image("input").src = chosen.dataset.input;
    for (const one of this.inputs) one.addEventListener("click", () => this.showInput(one));
    for (const one of this.set) one.addEventListener("click", () => { this.select(Number(one.dataset.index)); this.chosen(this.index); });
    for (const one of root.querySelectorAll("[data-mode]")) if (one.tagName === "BUTTON") one.addEventListener("click", () => this.mode(one.dataset.mode));
    for (const one of root.querySelectorAll("[data-zoom]")) one.addEventListener("click", () => this.zoom(one.dataset.zoom));
    for (const image of this.images) {
      image.addEventListener("error", () => this.failed());
      image.addEventListener("load", () => this.place());
    }
    root.querySelector("#divider").addEventListener("input", () => this.divide());
    this.stage.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoomBy(Math.exp(-event.deltaY / 400), event);
    }, { passive: false });
    this.pointers = new Map();
    this.stage.addEventListener("pointerdown", (event) => { this.stage.setPointerCapture(event.pointerId); this.pointers.set(event.pointerId, event); });
    this.stage.addEventListener("pointermove", (event) => this.drag(event));
    for (const end of ["pointerup", "pointercancel"]) this.stage.addEventListener(end, (event) => this.pointers.delete(event.pointerId));
    this.stage.addEventListener("dblclick", () => this.zoom(this.scale === 1 ? "actual" : "fit"));
    this.select(0);
    this.mode(this.stage.dataset.mode);
  },
  image(pane) { return this.stage.querySelector(`.${pane} img`); },
  /* The two panes that slider and flicker compare. */
  compared() { return this.stage.querySelector(".right") ? ["left", "right"] : ["input", "left"]; },
  showInput(thumb) {
    this.image("input").src = thumb.dataset.input;
    for (const one of this.inputs) one.setAttribute("aria-pressed", String(one === thumb));
    if (this.stage.dataset.mode === "single") this.mode("side");
  },
  select(index) {
    if (index === this.index || !this.set[index]) return;
    this.index = index;
    this.set.forEach((one, i) => one.setAttribute("aria-pressed", String(i === index)));
    const chosen = this.set[index].dataset;
    this.image("left").src = chosen.left;
    if (chosen.right) this.image("right").src = chosen.right;
  },
  step(by) {
    if (this.set.length < 2) return;
    this.select((this.index + by + this.set.length) % this.set.length);
    this.chosen(this.index);
  },
  mode(name) {
    if (!this.root.querySelector(`button[data-mode=${name}]`) && name !== this.stage.dataset.mode) return;
    this.stage.dataset.mode = name;
    for (const one of this.root.querySelectorAll("button[data-mode]")) one.setAttribute("aria-pressed", String(one.dataset.mode === name));
    clearInterval(this.timer);
    const [first, second] = this.compared();
    for (const pane of this.stage.querySelectorAll(".pane")) {
      pane.classList.toggle("unused", !pane.matches(`.${first}, .${second}`));
      pane.classList.remove("hiding");
    }
    this.root.querySelector(".divider").hidden = name !== "slider";
    if (name === "flicker") {
      const top = this.stage.querySelector(`.${second}`), under = this.stage.querySelector(`.${first}`);
      under.classList.add("hiding");
      this.timer = setInterval(() => { top.classList.toggle("hiding"); under.classList.toggle("hiding"); }, 700);
    }
    this.divide();
  },
  toggle(name) { this.mode(this.stage.dataset.mode === name ? (name === "side" ? "single" : "side") : name); },
  divide() {
    const at = Number(this.root.querySelector("#divider").value);
    const [, second] = this.compared();
    for (const pane of this.stage.querySelectorAll(".pane")) {
      const clipped = this.stage.dataset.mode === "slider" && pane.classList.contains(second);
      pane.querySelector(".frame").style.clipPath = clipped ? `inset(0 0 0 ${at}%)` : "";
    }
  },
  moveDivider(by) {
    const divider = this.root.querySelector("#divider");
    divider.value = Number(divider.value) + by;
    this.divide();
  },
  frame() { return this.image("left").parentElement; },
  drag(event) {
    const before = this.pointers.get(event.pointerId);
    if (!before) return;
    const others = [...this.pointers.values()].filter((one) => one.pointerId !== event.pointerId);
    if (others.length === 1) {
      const distance = (a, b) => Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY);
      this.zoomBy(distance(event, others[0]) / Math.max(1, distance(before, others[0])), event);
    } else this.move(event.clientX - before.clientX, event.clientY - before.clientY);
    this.pointers.set(event.pointerId, event);
  },
  move(dx, dy) { this.x += dx; this.y += dy; this.place(); },
  zoomBy(factor, event = null) {
    const { width, height } = this.frame().getBoundingClientRect();
    const scale = Math.min(40, Math.max(1, this.scale * factor));
    let px = width / 2, py = height / 2;
    if (event) {
      const pane = (event.target.closest && event.target.closest(".frame")) || this.frame();
      const box = pane.getBoundingClientRect();
      px = event.clientX - box.left; py = event.clientY - box.top;
    }
    this.x = px - ((px - this.x) * scale) / this.scale;
    this.y = py - ((py - this.y) * scale) / this.scale;
    this.scale = scale;
    this.place();
  },
  zoom(how) {
    if (how === "fit") { Object.assign(this, { scale: 1, x: 0, y: 0 }); this.place(); }
    else if (how === "actual") this.zoomBy(1 / this.fitted() / this.scale);
    else this.zoomBy(how === "in" ? 1.25 : 0.8);
  },
  /* Device pixels per image pixel at scale 1. */
  fitted() {
    const image = this.image("left"), { width, height } = this.frame().getBoundingClientRect();
    return devicePixelRatio * Math.min(width / Math.max(1, image.naturalWidth), height / Math.max(1, image.naturalHeight));
  },
  place() {
    const { width, height } = this.frame().getBoundingClientRect();
    this.x = Math.min(0, Math.max(width * (1 - this.scale), this.x));
    this.y = Math.min(0, Math.max(height * (1 - this.scale), this.y));
    for (const image of this.images) image.style.transform = `translate(${this.x}px, ${this.y}px) scale(${this.scale})`;
    const percent = Math.round(100 * this.scale * this.fitted());
    this.stage.classList.toggle("pixelated", percent > 250);
    this.root.querySelector("#zoom").textContent = Number.isFinite(percent) ? `${percent} %` : "";
  },
  /* Whether the key is one of the viewer's. */
  key(event) {
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    const actions = {
      d: () => this.toggle("side"), s: () => this.toggle("slider"), f: () => this.toggle("flicker"),
      "+": () => this.zoom("in"), "=": () => this.zoom("in"), "-": () => this.zoom("out"), Home: () => this.zoom("fit"),
      "[": () => this.step(-1), "]": () => this.step(1),
    };
    if (key in ARROWS && !event.target.matches("input")) {
      if (event.shiftKey) this.moveDivider(key === "ArrowLeft" ? -5 : key === "ArrowRight" ? 5 : 0);
      else this.move(...ARROWS[key]);
    } else if (key in actions) actions[key]();
    else return false;
    return true;
  },
};
