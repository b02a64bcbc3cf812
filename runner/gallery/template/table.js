// The images as a table: columns → fields; search, filters, order. Nothing here draws.

const data = JSON.parse(document.getElementById("data").textContent);
const count = data.rows;

// columns.py says what the four forms of a column are.
function reader(column) {
  if (column === undefined) return () => null;
  if ("all" in column) return () => column.all;
  if ("from" in column) return (row) => column.from + row * column.step;
  if ("each" in column) return (row) => column.each[row];
  return (row) => column.of[column.at[row]];
}

const readers = Object.fromEntries(
  Object.entries(data.columns).map(([name, column]) => [name, reader(column)]),
);

/** What a row has in a column; null where it has nothing. */
function valueOf(name, row) {
  return Object.hasOwn(readers, name) ? readers[name](row) : null;
}

/** All values of a column, each of them at least once: far fewer than rows where many are equal. */
function valuesIn(name) {
  const column = data.columns[name];
  if ("all" in column) return [column.all];
  return column.of ?? column.each ?? Array.from({ length: count }, (_, row) => readers[name](row));
}

const parsed = new Map();

/** The parameters of an image; their JSON is kept as text. */
function parse(text) {
  if (!parsed.has(text)) parsed.set(text, JSON.parse(text));
  return parsed.get(text);
}

const parametersOf = (row) => parse(valueOf("parameters", row));

const isMapping = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

/** The one form of a value for reading, comparing and searching. */
function show(value) {
  if (value === null || value === undefined) return "none";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

const TEXTS = new Set(["prompt", "file_name", "fingerprint", "error", "truncated", "state"]);
const FIRST = ["seed", "id", "sweep", "parameters", "meta"]; // the others follow

/** What can be filtered, sorted and laid out by: {key, label, of(row), values()}. */
function fieldsOf() {
  const names = Object.keys(readers).filter((name) => !TEXTS.has(name));
  const place = (name) => (FIRST.includes(name) ? FIRST.indexOf(name) : FIRST.length);
  names.sort((one, other) => place(one) - place(other));
  const swept = names.includes("sweep") ? nested("sweep", (value) => value ?? {}).map((field) => field.label) : [];
  return names.flatMap((name) => {
    if (name === "parameters") return nested(name, parse).filter(({ label }) => !swept.includes(label));
    if (valuesIn(name).some(isMapping)) return nested(name, (value) => value ?? {});
    return [fieldOf(name)];
  });
}

function fieldOf(name) {
  return { key: name, label: name.replaceAll("_", " "), of: readers[name], values: () => valuesIn(name) };
}

/** A field for each key of the mappings in a column. */
function nested(name, open) {
  const mappings = valuesIn(name).map(open);
  const keys = new Set(mappings.flatMap((mapping) => Object.keys(mapping)));
  const at = (mapping, key) => (Object.hasOwn(mapping, key) ? mapping[key] : null);
  return [...keys].map((key) => ({
    key: `${name}.${key}`,
    label: key,
    of: (row) => at(open(readers[name](row)), key),
    values: () => mappings.map((mapping) => at(mapping, key)),
  }));
}

const fields = fieldsOf();
const promptField = fieldOf("prompt");
const fieldBy = new Map([promptField, ...fields].map((field) => [field.key, field]));

const MOST_VALUES = 60; // that a list or an axis of the grid can show

/** An axis of a sweep has its values in the order that its author gave them. */
const isAxis = (field) => field.key.startsWith("sweep.");

/** The different values of a field as text, in order; null where they are too many. */
function distinct(field) {
  if (field.distinct === undefined) {
    const found = new Set();
    for (const value of field.values()) {
      found.add(show(value));
      if (found.size > MOST_VALUES) break;
    }
    field.distinct = found.size > MOST_VALUES ? null : isAxis(field) ? [...found] : [...found].sort(compare);
  }
  return field.distinct;
}

/** Fields that differ between images. */
const varied = () => fields.filter((field) => distinct(field)?.length !== 1);

const collator = new Intl.Collator(undefined, { numeric: true });

function compare(one, other) {
  if (one !== "" && other !== "" && !isNaN(one) && !isNaN(other)) return one - other;
  return collator.compare(one, other);
}

const KINDS = {
  all: () => true,
  failed: (row) => valueOf("state", row) === "failed",
  skipped: (row) => valueOf("state", row) === "skipped",
  flagged: (row) => Boolean(valueOf("flagged", row)),
  degraded: (row) => (valueOf("degraded", row) ?? []).length > 0,
  "text cut": (row) => valueOf("truncated", row) !== null,
};

let haystacks = null;

/** What the search looks through: prompt, id, number and file name. */
function haystack(row) {
  haystacks ??= Array.from({ length: count }, (_, at) =>
    ["prompt", "id", "index", "file_name"]
      .map((name) => valueOf(name, at) ?? "")
      .join("\n")
      .toLowerCase(),
  );
  return haystacks[row];
}

/** Whether a field's value is the one that is asked for: a text, or numbers `from..to`. */
function matches(field, wanted, row) {
  const range = /^\s*(-?[\d.]+)\s*\.\.\s*(-?[\d.]+)\s*$/.exec(wanted);
  if (!range) return show(field.of(row)) === wanted.trim();
  return Number(field.of(row)) >= Number(range[1]) && Number(field.of(row)) <= Number(range[2]);
}

/** The rows that pass the search and the filters, in the order that is asked for. */
function select({ words, kind, filters, sort, isDown }) {
  const needles = words.toLowerCase().split(/\s+/).filter(Boolean);
  const asked = filters.filter(({ value }) => value !== "");
  const found = [];
  for (let row = 0; row < count; row++) {
    if (
      KINDS[kind](row) &&
      needles.every((needle) => haystack(row).includes(needle)) &&
      asked.every(({ field, value }) => matches(field, value, row))
    ) {
      found.push(row);
    }
  }
  if (sort !== "index") {
    const texts = new Map(found.map((row) => [row, show(fieldBy.get(sort).of(row))]));
    found.sort((one, other) => compare(texts.get(one), texts.get(other)) || one - other);
  }
  return isDown ? found.reverse() : found;
}
