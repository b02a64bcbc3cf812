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

const parsed = new Map();

function parametersOf(row) {
  const text = valueOf("parameters", row);
  if (!parsed.has(text)) parsed.set(text, JSON.parse(text ?? "{}"));
  return parsed.get(text);
}

const isMapping = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

/** The one form of a value for reading, comparing and searching. */
function show(value) {
  if (value === null || value === undefined) return "none";
  return typeof value === "string" ? value : JSON.stringify(value);
}

const TEXTS = new Set(["prompt", "file_name", "fingerprint", "error", "truncated", "state"]);

const FIRST = ["seed", "id", "sweep", "parameters", "meta"]; // the others follow

/** What can be filtered, sorted and laid out by: {key, label, of(row)}. */
function fieldsOf() {
  const fields = [];
  const nested = (name, of) => {
    const keys = new Set();
    for (let row = 0; row < count; row++) {
      for (const key of Object.keys(of(row) ?? {})) keys.add(key);
    }
    for (const key of keys) {
      const at = (row) => (Object.hasOwn(of(row) ?? {}, key) ? of(row)[key] : null);
      fields.push({ key: `${name}.${key}`, label: key, of: at });
    }
  };
  for (const name of Object.keys(readers)) {
    if (name === "parameters") nested(name, parametersOf);
    else if (isMapping(firstOf(name))) nested(name, readers[name]);
    else if (!TEXTS.has(name)) fields.push({ key: name, label: name.replaceAll("_", " "), of: readers[name] });
  }
  const place = ({ key }) => {
    const at = FIRST.indexOf(key.split(".")[0]);
    return at < 0 ? FIRST.length : at;
  };
  return fields.sort((one, other) => place(one) - place(other));
}

function firstOf(name) {
  for (let row = 0; row < count; row++) {
    if (valueOf(name, row) !== null) return valueOf(name, row);
  }
  return null;
}

const fields = fieldsOf();
const promptField = { key: "prompt", label: "prompt", of: (row) => valueOf("prompt", row) };
const fieldBy = new Map([promptField, ...fields].map((field) => [field.key, field]));

const MOST_VALUES = 60; // that a list or an axis of the grid can show

/** The different values of a field as text, in order; null where they are too many. */
function distinct(field) {
  if (field.values === undefined) {
    const found = new Set();
    for (let row = 0; row < count && found.size <= MOST_VALUES; row++) {
      found.add(show(field.of(row)));
    }
    field.values = found.size > MOST_VALUES ? null : [...found].sort(compare);
  }
  return field.values;
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
