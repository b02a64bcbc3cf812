// What the page shows now, and what keys and clicks change.

const PER_PAGE = 120;
const MOST_TILES = 2000; // that are kept
const asked = { words: "", kind: "all", filters: [], sort: "index", isDown: false };
let page = 0;
let rows = [];

const main = document.getElementById("main");
const VIEWS = {
  images: { title: "Images", draw: imagesView, has: () => true },
  grid: { title: "Grid", draw: () => gridView(rows, draw), has: () => count > 1 && axisFields().length > 0 },
  failures: { title: "Failures", draw: () => failuresView(rows), has: () => FAILED > 0 },
  replicas: { title: "Replicas", draw: replicasView, has: () => data.replicas.length > 0 },
};
let view = "images";
const results = el("div", { class: "results" });

const FAILED = countOf((row) => !isThere(row));

function countOf(test) {
  let found = 0;
  for (let row = 0; row < count; row++) found += test(row);
  return found;
}

// --- the controls -------------------------------------------------------------------------------

const search = el("input", {
  type: "search",
  placeholder: "Search prompts, ids, files",
  "aria-label": "Search prompts, ids and file names",
  autocomplete: "off",
  spellcheck: "false",
  input: (event) => change({ words: event.currentTarget.value }),
});

function kindButtons() {
  const kinds = Object.keys(KINDS).map((kind) => [kind, countOf(KINDS[kind])]);
  return kinds
    .filter(([kind, number]) => kind === "all" || number)
    .map(([kind, number]) =>
      el(
        "button",
        { type: "button", class: "kind", "aria-pressed": String(kind === asked.kind), "data-kind": kind, click: () => change({ kind }) },
        kind,
        el("small", {}, number.toLocaleString("en")),
      ),
    );
}

function sortControls() {
  const usual = ["index", "prompt", "seed"].filter((key) => fieldBy.has(key));
  const keys = new Set([...usual, ...varied().map((field) => field.key)]);
  const options = [...keys].map((key) => el("option", { value: key }, fieldBy.get(key).label));
  const direction = el("button", {
    type: "button",
    class: "quiet",
    "aria-label": "Reverse the order",
    click: () => {
      direction.textContent = asked.isDown ? "↑" : "↓";
      change({ isDown: !asked.isDown });
    },
  }, "↑");
  const choice = el("select", { change: (event) => change({ sort: event.currentTarget.value }) }, ...options);
  return [el("label", { class: "field" }, "Sort", choice), direction];
}

const filterBar = el("span", { class: "filters" });

function filterChoice() {
  const options = varied().map((field) => el("option", { value: field.key }, field.label));
  const choice = el(
    "select",
    {
      "aria-label": "Add a filter",
      change: () => {
        const filter = { field: fieldBy.get(choice.value), value: "" };
        asked.filters.push(filter);
        filterBar.append(filterControl(filter));
        choice.value = "";
      },
    },
    el("option", { value: "" }, "Filter by …"),
    ...options,
  );
  return options.length ? choice : null;
}

/** A list where the values are few; else a text, or `from..to` for numbers. */
function filterControl(filter) {
  const values = distinct(filter.field);
  const set = (event) => {
    filter.value = event.currentTarget.value;
    change({});
  };
  const control = values
    ? el("select", { change: set, "aria-label": filter.field.label }, el("option", { value: "" }, "any"), ...values.map((value) => el("option", { value }, value || "“”")))
    : el("input", { input: set, "aria-label": filter.field.label, placeholder: "value or 1..9", size: "10" });
  const drop = () => {
    asked.filters.splice(asked.filters.indexOf(filter), 1);
    chip.remove();
    change({});
  };
  const chip = el(
    "span",
    { class: "chip" },
    el("span", { "aria-hidden": "true" }, filter.field.label),
    control,
    el("button", { type: "button", class: "quiet", "aria-label": `Remove the filter of ${filter.field.label}`, click: drop }, "✕"),
  );
  return chip;
}

function sizeControl() {
  const set = (event) => document.documentElement.style.setProperty("--tile", `${event.currentTarget.value}px`);
  return el("label", { class: "field size" }, "Size", el("input", { type: "range", min: "90", max: "340", value: "190", input: set }));
}

// --- drawing ------------------------------------------------------------------------------------

function change(values) {
  Object.assign(asked, values);
  page = 0;
  for (const button of document.querySelectorAll(".kind")) {
    button.setAttribute("aria-pressed", String(button.dataset.kind === asked.kind));
  }
  update();
}

function update() {
  rows = select(asked);
  draw();
}

function draw() {
  results.replaceChildren(...[VIEWS[view].draw()].flat().filter(Boolean));
  for (const box of results.querySelectorAll(".scroll")) watchEdge(box);
}

/** A box fades out where more of it lies beyond its right edge. */
function watchEdge(box) {
  const look = () => box.classList.toggle("goes-on", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
  box.addEventListener("scroll", look);
  new ResizeObserver(look).observe(box);
}

function imagesView() {
  if (!rows.length) return el("p", { class: "note" }, "No image fits.");
  const shown = rows.slice(page * PER_PAGE, (page + 1) * PER_PAGE);
  return [el("div", { class: "tiles" }, ...shown.map(keptTile)), pager()];
}

const tiles = new Map();

/** A tile that was drawn before is there at once, picture and all. */
function keptTile(row) {
  if (tiles.size > MOST_TILES) tiles.clear();
  if (!tiles.has(row)) tiles.set(row, tile(row));
  return tiles.get(row);
}

function pager() {
  const pages = Math.ceil(rows.length / PER_PAGE);
  const go = (to) => {
    page = to;
    draw();
    main.scrollIntoView();
    results.querySelector(".tile")?.focus({ preventScroll: true });
  };
  const button = (words, to, isOff) => el("button", { type: "button", disabled: isOff, click: () => go(to) }, words);
  const [first, last] = [page * PER_PAGE + 1, Math.min(rows.length, (page + 1) * PER_PAGE)];
  const places = `${first.toLocaleString("en")}–${last.toLocaleString("en")} of ${counted(rows.length, "image")}`;
  return el(
    "nav",
    { class: "pager", "aria-label": "Pages" },
    pages > 1 ? button("Back", page - 1, page === 0) : null,
    el("span", { role: "status" }, places),
    pages > 1 ? button("Next", page + 1, page + 1 >= pages) : null,
  );
}


// --- keys, addresses, the start -----------------------------------------------------------------

/** `#grid` shows a view, `#image-12` an image over it. */
function follow() {
  const name = location.hash.slice(1);
  const number = /^image-(\d+)$/.exec(name);
  if (number) {
    const row = rowOf.get(Number(number[1]));
    if (row !== undefined) openImage(row, rows);
    return;
  }
  viewer.close();
  if (Object.hasOwn(VIEWS, name) && VIEWS[name].has()) view = name;
  for (const link of document.querySelectorAll(".views a")) {
    if (link.hash === `#${view}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  toolbar.hidden = view === "replicas";
  draw();
}

const rowOf = new Map(Array.from({ length: count }, (_, row) => [valueOf("index", row), row]));

/** Arrows go from tile to tile as they lie on the screen; the first one to the first tile in sight. */
function moveFocus(event) {
  const tiles = [...results.querySelectorAll(".tile")];
  const at = tiles.indexOf(document.activeElement);
  if (event.altKey || event.ctrlKey || event.metaKey || event.target.matches(".scroll")) return;
  if (at < 0) {
    const first = tiles.find((tile) => tile.getBoundingClientRect().bottom > 0);
    if (!first || !event.key.startsWith("Arrow")) return;
    event.preventDefault();
    first.focus();
    return;
  }
  const top = tiles[at].offsetTop;
  const perLine = tiles.filter((tile) => tile.offsetTop === top).length;
  const to = { ArrowLeft: at - 1, ArrowRight: at + 1, ArrowUp: at - perLine, ArrowDown: at + perLine, Home: 0, End: tiles.length - 1 }[event.key];
  if (tiles[to] === undefined) return;
  event.preventDefault();
  tiles[to].focus();
}

document.addEventListener("keydown", (event) => {
  const isTyping = event.target.matches("input, select, textarea");
  if (event.key === "/" && !isTyping && !viewer.open && !toolbar.hidden) {
    event.preventDefault();
    search.select();
    search.focus();
  } else if (!viewer.open && !isTyping) {
    moveFocus(event);
  }
});

viewer.addEventListener("close", () => {
  if (!location.hash.startsWith("#image-")) return;
  const shown = rowOf.get(Number(location.hash.slice(7)));
  history.replaceState(null, "", `#${view}`);
  results.querySelector(`[data-row="${shown}"]`)?.focus();
});
viewer.addEventListener("click", (event) => {
  if (event.target === viewer) viewer.close();
});

const THEMES = { auto: "◐", light: "○", dark: "●" };

/** Light, dark, or as the system has it; kept where the browser lets a page keep something. */
function setTheme(name) {
  document.documentElement.dataset.theme = name;
  const button = document.getElementById("theme");
  button.textContent = THEMES[name];
  button.setAttribute("aria-label", `Colours: ${name}`);
  button.title = `Colours: ${name}`;
}

function kept(value) {
  try {
    if (value !== undefined) localStorage.setItem("runner-theme", value);
    return localStorage.getItem("runner-theme");
  } catch {
    return null;
  }
}

document.getElementById("theme").addEventListener("click", () => {
  const names = Object.keys(THEMES);
  const next = names[(names.indexOf(document.documentElement.dataset.theme) + 1) % names.length];
  kept(next);
  setTheme(next);
});

function begin() {
  setTheme(Object.hasOwn(THEMES, kept() ?? "") ? kept() : "auto");
  const written = document.querySelector("time");
  const date = new Date(Number(written.dataset.seconds) * 1000);
  written.dateTime = date.toISOString();
  written.textContent = date.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
  const links = Object.entries(VIEWS).filter(([, { has }]) => has());
  document.querySelector(".views").append(...links.map(([name, { title }]) => el("a", { href: `#${name}` }, title)));
  main.append(toolbar, results);
  rows = select(asked);
  follow();
  if (!results.hasChildNodes()) draw(); // behind an image that the address names
}

const toolbar = el(
  "div",
  { class: "toolbar", role: "search" },
  search,
  el("span", { class: "kinds", role: "group", "aria-label": "Which images" }, ...kindButtons()),
  filterBar,
  el("span", { class: "arrange" }, filterChoice(), ...sortControls(), sizeControl()),
);
window.addEventListener("hashchange", follow);
begin();
setTimeout(() => haystack(0)); // so that the first search is as fast as the others
