// How the job ran: what failed and why, and what each replica did with its time.

const MOST_LISTED = 100; // images of one reason

/** Failures with the same reason together, the most frequent first. */
function failuresView(rows) {
  const reasons = new Map();
  for (const row of rows.filter((row) => !isThere(row))) {
    const key = JSON.stringify([valueOf("kind", row), valueOf("error", row)]);
    if (!reasons.has(key)) reasons.set(key, []);
    reasons.get(key).push(row);
  }
  const ordered = [...reasons.values()].sort((one, other) => other.length - one.length);
  if (!ordered.length) return [el("p", { class: "note" }, "No failures here.")];
  return ordered.map((group) =>
    el(
      "section",
      { class: "failure" },
      el("h2", {}, valueOf("kind", group[0]), el("small", {}, counted(group.length, "image"))),
      el("p", { class: "reason", dir: "auto" }, valueOf("error", group[0])),
      el("ul", {}, ...group.slice(0, MOST_LISTED).map(failure)),
      group.length > MOST_LISTED ? el("p", { class: "note" }, `and ${group.length - MOST_LISTED} more in failures.jsonl`) : null,
    ),
  );
}

function failure(row) {
  const link = el("a", { href: `#image-${valueOf("index", row)}` }, nameOf(row));
  return el("li", {}, link, el("span", { dir: "auto" }, valueOf("prompt", row)));
}

function counted(number, word) {
  return `${number.toLocaleString("en")} ${number === 1 ? word : `${word}s`}`;
}

function duration(seconds) {
  if (seconds < 59.5) return `${Number(seconds.toPrecision(2))} s`;
  const whole = Math.round(seconds);
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
  if (hours) return `${hours} h ${minutes} min`;
  return whole % 60 ? `${minutes} min ${whole % 60} s` : `${minutes} min`;
}

// --- what each replica did with its time ----------------------------------------------------------

const MOST_LANES = 128;
const WIDTH = 1000; // of a drawing, in its own units
const LABELS = 5; // of the time axis

function svg(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function replicasView() {
  const replicas = data.replicas.slice(0, MOST_LANES);
  const spans = new Map((data.timeline?.replicas ?? []).map((lane) => [lane.replica, lane]));
  const seconds = Math.max(data.seconds ?? 0, ...replicas.map((one) => one.start_s + one.busy_s), 1e-3);
  const isCut = data.replicas.length > MOST_LANES;
  return [
    throughput(seconds),
    el("h2", {}, "Replicas over time"),
    el("div", { class: "lanes" }, ...replicas.map((one) => lane(one, spans.get(one.replica), seconds)), timeAxis(seconds)),
    el(
      "p",
      { class: "legend" },
      ...["loading", "busy", "idle"].map((state) => el("span", { class: state }, state)),
    ),
    isCut ? el("p", { class: "note" }, `The first ${MOST_LANES} of ${data.replicas.length} replicas.`) : null,
    el("div", { class: "scroll", tabindex: "0" }, replicaTable(replicas)),
  ];
}

/** Images per second of all replicas together; null where nobody kept a timeline. */
function throughput(seconds) {
  const { span_s: span, replicas = [] } = data.timeline ?? {};
  const images = [];
  for (const one of replicas) {
    one.images.forEach((number, at) => (images[at] = (images[at] ?? 0) + number));
  }
  const rates = Array.from(images, (number, at) => (number ?? 0) / Math.min(span, seconds - at * span));
  const most = Math.max(...rates, 0);
  if (!most) return null;
  const scale = (at) => (Math.min(at * span, seconds) / seconds) * WIDTH;
  const bars = rates.map((rate, at) => {
    const height = (rate / most) * 100;
    const words = `${duration(at * span)}: ${rate.toPrecision(3)} images/s`;
    return svg(
      "rect",
      { class: "busy", x: scale(at), y: 100 - height, width: Math.max(0, scale(at + 1) - scale(at) - 1), height },
      svg("title", {}, words),
    );
  });
  const label = `Images per second over time, ${most.toPrecision(3)} at most`;
  const drawing = svg("svg", { class: "chart", viewBox: `0 0 ${WIDTH} 100`, preserveAspectRatio: "none", role: "img", "aria-label": label }, ...bars);
  const head = el("h2", {}, "Images per second", el("small", {}, `${most.toPrecision(3)} at most`));
  return el("section", {}, head, drawing, timeAxis(seconds));
}

/** From its start to its end: loading, then how busy it was in each span. */
function lane(replica, spans, seconds) {
  const { start_s: start, busy_s: busy } = replica;
  const part = (state, from, to, share, words) =>
    svg(
      "rect",
      { class: state, x: (from / seconds) * WIDTH, width: Math.max(0, ((to - from) / seconds) * WIDTH), y: 0, height: 10, opacity: share },
      svg("title", {}, words),
    );
  const parts = [part("idle", 0, seconds, 1, "idle"), part("loading", 0, start, 1, `loading: ${duration(start)}`)];
  const span = data.timeline?.span_s;
  if (spans === undefined) {
    const share = seconds > start ? busy / (seconds - start) : 0;
    parts.push(part("busy", start, seconds, share, `busy ${percent(share)}`));
  }
  spans?.busy_s.forEach((time, at) => {
    const [from, to] = [Math.max(at * span, start), Math.min((at + 1) * span, seconds)];
    const share = to > from ? Math.min(1, time / (to - from)) : 0;
    if (share) parts.push(part("busy", from, to, share, `${duration(from)} to ${duration(to)}: busy ${percent(share)}`));
  });
  const words = `Replica ${replica.replica}: loading ${duration(start)}, busy ${duration(busy)}`;
  const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} 10`, preserveAspectRatio: "none", role: "img", "aria-label": words }, ...parts);
  return el("div", { class: "lane" }, el("span", {}, String(replica.replica)), drawing);
}

const percent = (share) => `${Math.round(share * 100)} %`;

function timeAxis(seconds) {
  const times = Array.from({ length: LABELS }, (_, at) => (at / (LABELS - 1)) * seconds);
  return el("p", { class: "times", "aria-hidden": "true" }, ...times.map((time) => el("span", {}, time ? duration(time) : "0")));
}

function replicaTable(replicas) {
  const columns = {
    replica: (one) => one.replica,
    host: (one) => one.host,
    device: (one) => one.device,
    images: (one) => one.images.toLocaleString("en"),
    "images/s": (one) => (one.busy_s ? (one.images / one.busy_s).toPrecision(3) : null),
    loading: (one) => duration(one.start_s),
    busy: (one) => duration(one.busy_s),
    idle: (one) => (one.idle_s === null ? null : duration(one.idle_s)),
    "memory peak": (one) => (one.memory_peak ? `${(one.memory_peak / 2 ** 30).toFixed(1)} GiB` : null),
    state: (one) => one.state,
  };
  const known = Object.entries(columns).filter(([, of]) => replicas.some((one) => (of(one) ?? "") !== ""));
  const head = el("tr", {}, ...known.map(([name]) => el("th", { scope: "col" }, name)));
  const lines = replicas.map((one) => el("tr", {}, ...known.map(([, of]) => el("td", { dir: "auto" }, String(of(one) ?? "")))));
  return el("table", { class: "plain" }, el("thead", {}, head), el("tbody", {}, ...lines));
}
