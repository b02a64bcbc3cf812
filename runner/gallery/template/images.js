// Small pieces, the tiles of images, and the viewer.

/** An element. Attributes are set as attributes and words as text, so nothing is ever markup. */
function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

const pathOf = (row) => valueOf("file_name", row).split("/").map(encodeURIComponent).join("/");
const numberOf = (row) => String(valueOf("index", row)).padStart(6, "0");

/** The number of an image; the file where its name is the author's own. */
function nameOf(row) {
  const file = valueOf("file_name", row);
  const isOwn = file !== null && file.split("/").at(-1) !== `${numberOf(row)}.png`;
  return isOwn ? file : numberOf(row);
}

const isThere = (row) => valueOf("state", row) === "done";

/** The thumbnail; for a small image the image itself, and also where there is no thumbnail. */
function thumbnail(row) {
  const [width, height] = ["width", "height"].map((name) => valueOf(name, row));
  const isSmall = width !== null && Math.max(width, height) <= data.side;
  const print = valueOf("fingerprint", row);
  const small = `.runner/thumbnails/${print.slice(0, 2)}/${print}.webp`;
  const image = el("img", {
    src: isSmall ? pathOf(row) : small,
    alt: valueOf("prompt", row),
    loading: "lazy",
    decoding: "async",
    width,
    height,
  });
  image.addEventListener("error", () => (image.src = pathOf(row)), { once: true });
  return image;
}

function badges(row) {
  const names = Object.keys(KINDS).filter((kind) => kind !== "all" && KINDS[kind](row));
  return names.map((kind) => el("span", { class: `badge ${kind.replace(" ", "-")}` }, kind));
}

function picture(row) {
  if (isThere(row)) return thumbnail(row);
  return el("span", { class: "reason", dir: "auto" }, valueOf("error", row) ?? "");
}

function tile(row, caption = nameOf(row)) {
  return el(
    "a",
    { class: "tile", href: `#image-${valueOf("index", row)}`, "data-row": row },
    el("span", { class: "frame" }, picture(row)),
    el(
      "span",
      { class: "caption" },
      el("span", { class: "line" }, el("b", {}, caption), ...badges(row)),
      el("span", { class: "words", dir: "auto", "aria-hidden": "true" }, valueOf("prompt", row)),
    ),
  );
}

// --- how an image is made again -----------------------------------------------------------------

// YAML's parser takes JSON, but for these characters, which must be escaped.
const UNPRINTABLE = /[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]/g;
const escaped = (text) =>
  text.replace(UNPRINTABLE, (sign) => `\\u${sign.charCodeAt(0).toString(16).padStart(4, "0")}`);
const yaml = (value) => escaped(JSON.stringify(value));

const SETUP = ["scheduler", "loras"]; // keys of a prompt that stand among the parameters of an image

function entryOf(row) {
  const lines = [`- prompt: ${yaml(valueOf("prompt", row))}`, `  seed: ${valueOf("seed", row)}`];
  let parameters = valueOf("parameters", row);
  const rest = { ...parametersOf(row) };
  for (const key of SETUP.filter((key) => Object.hasOwn(rest, key))) {
    lines.push(`  ${key}: ${yaml(rest[key])}`);
    delete rest[key];
    parameters = JSON.stringify(rest);
  }
  if (parameters !== "{}") lines.push(`  parameters: ${escaped(parameters)}`);
  return lines.join("\n");
}

function manifestOf(row) {
  const lines = Object.entries(data.manifest).map(([key, value]) => `${key}: ${yaml(value)}`);
  return [...lines, "prompts:", entryOf(row).replace(/^/gm, "  ")].join("\n") + "\n";
}

async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = el("textarea", { class: "unseen" });
    area.value = text;
    button.after(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    button.focus();
  }
  const words = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = words), 1200);
}

// --- the viewer ---------------------------------------------------------------------------------

const viewer = document.getElementById("viewer");
const HIDDEN = new Set(["prompt", "parameters", "index", "state", "error"]);

function facts(row) {
  const pairs = Object.entries(parametersOf(row));
  for (const name of Object.keys(readers)) {
    const value = HIDDEN.has(name) ? null : valueOf(name, row);
    const isSaid = (key) => Object.hasOwn(parametersOf(row), key); // the size, values of a sweep
    if (isSaid(name)) continue;
    if (isMapping(value)) pairs.push(...Object.entries(value).filter(([key]) => !isSaid(key)));
    else if (value !== null && show(value) !== "[]") pairs.push([name.replaceAll("_", " "), value]);
  }
  return el(
    "dl",
    { class: "metadata" },
    ...pairs.map(([name, value]) =>
      el("div", {}, el("dt", {}, name), el("dd", { dir: "auto" }, show(value) || "“”")),
    ),
  );
}

function copyButton(words, text) {
  return el("button", { type: "button", click: (event) => copy(text, event.currentTarget) }, words);
}

function largePicture(row) {
  if (!isThere(row)) return el("p", { class: "reason", dir: "auto" }, valueOf("error", row));
  const image = el("img", { src: pathOf(row), alt: valueOf("prompt", row) });
  return el("a", { href: pathOf(row), target: "_blank", title: "Open the file" }, image);
}

/** Show an image in the viewer; `rows` are those that the arrows go through. */
function openImage(row, rows) {
  const place = rows.indexOf(row);
  const step = (by) => {
    const next = rows[place + by];
    if (next !== undefined) location.replace(`#image-${valueOf("index", next)}`);
  };
  const button = (words, label, by, isOff) =>
    el("button", { type: "button", class: "quiet", "aria-label": label, disabled: isOff, click: () => step(by) }, words);
  viewer.replaceChildren(
    el("div", { class: "stage" }, largePicture(row)),
    el(
      "div",
      { class: "about" },
      el(
        "div",
        { class: "bar" },
        el("h2", {}, nameOf(row)),
        ...badges(row),
        el("span", { class: "gap" }),
        button("←", "Previous image", -1, place <= 0),
        button("→", "Next image", 1, place < 0 || place + 1 >= rows.length),
        el("button", { type: "button", class: "quiet", "aria-label": "Close", click: () => viewer.close() }, "✕"),
      ),
      el("p", { class: "prompt", dir: "auto" }, valueOf("prompt", row)),
      el("p", { class: "copies" }, copyButton("Copy prompt", valueOf("prompt", row)), copyButton("Copy entry", entryOf(row)), copyButton("Copy manifest", manifestOf(row))),
      el("details", {}, el("summary", {}, "A manifest that makes it again"), el("pre", { class: "entry", tabindex: "0" }, manifestOf(row))),
      facts(row),
    ),
  );
  viewer.onkeydown = (event) => {
    if (event.key === "ArrowLeft") step(-1);
    if (event.key === "ArrowRight") step(1);
  };
  if (!viewer.open) viewer.showModal();
  viewer.focus();
  viewer.scrollTop = 0;
}
