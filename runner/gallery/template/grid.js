// The grid: one field along each axis, an image in each cell.

const axes = { down: null, across: null };

/** The axes of a sweep first; then what differs in few values. */
function axisFields() {
  const usable = varied().filter((field) => distinct(field) !== null && field.key !== "seconds");
  const rank = (field) => (isAxis(field) ? 0 : field.key.startsWith("parameters.") ? 1 : 2);
  usable.sort((one, other) => rank(one) - rank(other));
  return distinct(promptField)?.length === 1 ? usable : [...usable, promptField];
}

function axisSelect(label, name, usable, redraw) {
  const choose = (event) => {
    axes[name] = fieldBy.get(event.currentTarget.value) ?? null;
    redraw();
  };
  const options = usable.map((field) =>
    el("option", { value: field.key, selected: field === axes[name] }, field.label),
  );
  const none = el("option", { value: "", selected: axes[name] === null }, "nothing");
  return el("label", { class: "field" }, label, el("select", { change: choose }, none, ...options));
}

function gridView(rows, redraw) {
  const usable = axisFields();
  if (axes.down === null && axes.across === null) {
    [axes.across = null, axes.down = null] = usable;
  }
  const [down, across] = [valuesAlong(axes.down, rows), valuesAlong(axes.across, rows)];
  const cells = new Map();
  for (const row of rows) {
    const place = placeOf(axes.down?.of(row), axes.across?.of(row));
    if (!cells.has(place)) cells.set(place, []);
    cells.get(place).push(row);
  }
  const controls = el(
    "p",
    { class: "axes" },
    axisSelect("Rows", "down", usable, redraw),
    axisSelect("Columns", "across", usable, redraw),
  );
  const isCut = Math.max(down.length, across.length) > MOST_VALUES;
  const note = `The first ${MOST_VALUES} values of each axis; a search or a filter shows others.`;
  const hidden = [...cells.values()].some((cell) => cell.length > 1) ? usable.filter(isHiddenAxis) : [];
  const names = hidden.map(({ label }) => label).join(" and ");
  const rest = `Each cell shows one of several images, which differ in ${names}; filter by it to choose.`;
  const table = el("table", { class: "grid" }, gridHead(across), gridBody(down, across, cells));
  return [controls, isCut ? el("p", { class: "note" }, note) : null, hidden.length ? el("p", { class: "note" }, rest) : null, el("div", { class: "scroll", tabindex: "0" }, table)];
}

const isHiddenAxis = (field) => isAxis(field) && field !== axes.down && field !== axes.across;

const placeOf = (down, across) => JSON.stringify([show(down), show(across)]);

/** The values of an axis that these rows have, one more than can be shown at most. */
function valuesAlong(field, rows) {
  const present = new Set();
  for (const row of rows) {
    if (present.size <= MOST_VALUES) present.add(show(field?.of(row)));
  }
  return field && distinct(field) ? distinct(field).filter((value) => present.has(value)) : [...present];
}

function gridHead(across) {
  const corner = axes.down ? axes.down.label : "";
  const names = across
    .slice(0, MOST_VALUES)
    .map((value) => el("th", { scope: "col", dir: "auto" }, axes.across ? value : ""));
  const title = axes.across ? el("tr", {}, el("td"), el("th", { class: "axis", colspan: names.length, scope: "colgroup" }, axes.across.label)) : null;
  return el("thead", {}, title, el("tr", {}, el("th", { class: "axis", scope: "col" }, corner), ...names));
}

function gridBody(down, across, cells) {
  const lines = down.slice(0, MOST_VALUES).map((value) =>
    el(
      "tr",
      {},
      el("th", { scope: "row", dir: "auto" }, axes.down ? value : ""),
      ...across.slice(0, MOST_VALUES).map((other) => gridCell(cells.get(placeOf(value, other)) ?? [])),
    ),
  );
  return el("tbody", {}, ...lines);
}

/** The first image of a cell, and how many more there are. */
function gridCell(rows) {
  if (!rows.length) return el("td", { class: "empty" }, el("span", { class: "unseen" }, "no image"));
  const row = rows.find(isThere) ?? rows[0];
  const more = rows.length > 1 ? `${nameOf(row)} + ${rows.length - 1} more` : nameOf(row);
  return el("td", {}, tile(row, more));
}
