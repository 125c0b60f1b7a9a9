"use strict";
// One page over /api/v1. What messages contain is only ever put into the page as text, never as HTML.
const $ = id => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
let auth = sessionStorage.getItem("authorization") || "";
let now = Date.now(), skew = 0;            // the broker's clock, and by how much it differs from this one
let view = {from: 0, span: 3600000, follows: true}, before = [], chosen = -1, bars = [];
let sort = {by: "count", down: true}, topics = [], counted = true, rows = [], next = null, filter = {}, open = null;
let lastTopic = "", failing = 0, pending = 0, deep = false;  // deep: the list was gone on with, and is not begun anew
const asked = {list: 0, forecast: 0};

// ---------------------------------------------------------------------------------------------- asking

async function ask(path, options = {}) {
  const headers = {...(auth ? {Authorization: auth} : {}), ...(options.body ? {"Content-Type": "application/json"} : {})};
  const reply = await fetch("api/v1/" + path, {...options, headers, cache: "no-store"});
  const found = await reply.json().catch(() => ({error: "HTTP " + reply.status}));
  if (reply.status === 401) { $("login").hidden = false; }
  return {status: reply.status, found};
}

async function need(path) {
  const {status, found} = await ask(path);
  if (status >= 400) throw Error(found.error || found.verdict);
  $("login").hidden = true;
  return found;
}

const query = values => Object.entries(values).filter(([, v]) => v !== "" && v != null)
  .map(([k, v]) => k + "=" + encodeURIComponent(v)).join("&");

// ---------------------------------------------------------------------------------------------- words

const number = n => n == null ? "–" : n.toLocaleString("en");
const size = n => { for (const u of ["B", "KiB", "MiB", "GiB"]) { if (n < 1024) return (n < 10 && u !== "B" ? n.toFixed(1) : Math.round(n)) + " " + u; n /= 1024; } return n.toFixed(1) + " TiB"; };
const pad = (n, w = 2) => String(n).padStart(w, "0");
function length(ms) {
  const s = Math.abs(ms) / 1000;
  if (s < 1) return Math.round(Math.abs(ms)) + " ms";
  if (s < 120) return (s < 10 ? s.toFixed(1) : Math.round(s)) + " s";
  if (s < 7200) return Math.round(s / 60) + " min";
  if (s < 172800) return Math.round(s / 3600) + " h";
  if (s < 63072000) return Math.round(s / 86400) + " days";
  return Math.round(s / 31536000).toLocaleString("en") + " years";
}
function at(ms, short = false) {
  const d = new Date(ms);
  if (isNaN(d)) return String(ms);
  const day = `${d.getFullYear()}-${pad(d.getMonth() + 1)}-${pad(d.getDate())}`;
  const time = `${pad(d.getHours())}:${pad(d.getMinutes())}:${pad(d.getSeconds())}`;
  if (short) return Math.abs(ms - now) < 72000000 ? time : day + " " + time.slice(0, 5);
  return `${day} ${time}.${pad(d.getMilliseconds(), 3)}`;
}
const away = ms => ms == null ? "–" : ms >= now ? "in " + length(ms - now) : length(now - ms) + " ago";

function put(tag, text, parent, attributes = {}) {
  const made = parent.namespaceURI === SVG ? document.createElementNS(SVG, tag) : document.createElement(tag);
  if (text != null) made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  parent.append(made);
  return made;
}

function pairs(list, entries) {
  list.replaceChildren();
  for (const [name, value] of entries) { put("dt", name, list); put("dd", value, list); }
}

// ---------------------------------------------------------------------------------------------- overview

async function showOverview() {
  const o = await need("overview");
  skew = o.now_ms - Date.now(); now = o.now_ms;
  $("broker").textContent = `${o.broker}, ${o.cluster}`;
  document.title = `${number(o.pending.count)} pending · ${o.broker}`;
  const state = $("state");
  state.className = o.not_ready.length ? "bad" : "good";
  const text = o.not_ready.length ? "Not ready: " + o.not_ready.join("; ") : "Ready. Live, every second.";
  if (state.textContent !== text) state.textContent = text;
  pending = o.pending.count;
  const p = o.pending, late = p.oldest_overdue_ms == null ? 0 : now - p.oldest_overdue_ms;
  const p99 = quantile(o.lateness, .99);
  const figures = [
    ["Pending", number(p.count)], ["Bytes, about", size(p.bytes)], ["On fixed levels", number(p.levels)],
    ["Next due", p.next_due_ms == null ? "–" : away(p.next_due_ms)], ["Last due", p.last_due_ms == null ? "–" : away(p.last_due_ms)],
    ["Oldest overdue", late > 0 ? length(late) : "none", late > 10000 ? "bad" : late > 1000 ? "warm" : "good"],
    ["Failed", number(p.failed), p.failed ? "bad" : "good"], ["99 of 100 late by", p99],
  ];
  const list = $("figures");
  if (list.children.length !== figures.length) {
    list.replaceChildren();
    for (const [name] of figures) { const box = put("div", null, list); put("dt", name, box); put("dd", "", box); }
  }
  figures.forEach(([, value, kind], n) => {
    const dd = list.children[n].lastChild;
    if (dd.textContent !== value) dd.textContent = value;
    dd.className = kind || "";
  });
  $("late-text").textContent = lateText(o.lateness);
  drawLate(o.lateness);
}

function bound(lateness, place) {
  return place < lateness.bounds_ms.length ? "≤ " + length(lateness.bounds_ms[place]) : "> " + length(lateness.bounds_ms.at(-1));
}

function quantile(lateness, share) {
  const total = lateness.since_start.reduce((a, b) => a + b, 0);
  let seen = 0;
  for (let n = 0; n < lateness.since_start.length; n++) {
    seen += lateness.since_start[n];
    if (total && seen >= share * total) return bound(lateness, n);
  }
  return "–";
}

function lateText(lateness) {
  const total = lateness.since_start.reduce((a, b) => a + b, 0);
  if (!total) return "Nothing was delivered since the start.";
  return `${number(total)} delivered since the start: half ${quantile(lateness, .5)} late, 99 % ${quantile(lateness, .99)}, 99.9 % ${quantile(lateness, .999)}, all ${quantile(lateness, 1)}.`;
}

function drawLate(lateness) {
  const svg = $("late"), W = Math.max(300, svg.clientWidth || 900), minutes = lateness.minutes, top = 8, left = 66;
  const used = lateness.since_start.map((n, place) => n ? place : -1).filter(n => n >= 0);
  const most = Math.max(4, ...used) + 1, H = most * 14 + 30;
  svg.setAttribute("viewBox", `0 0 ${W} ${H}`);
  svg.replaceChildren();
  for (let n = 0; n < most; n++) {
    if (n % 2 === 0) put("text", bound(lateness, n), svg, {x: left - 6, y: H - 26 - n * 14 - 2, "text-anchor": "end"});
    put("line", null, svg, {class: "axis", x1: left, x2: W - 6, y1: H - 22 - n * 14, y2: H - 22 - n * 14});
  }
  if (!minutes.length) return;
  const first = minutes[0].from_ms, last = minutes.at(-1).from_ms, count = Math.max(30, (last - first) / 60000 + 1);
  const w = (W - left - 8) / count, peak = Math.log1p(Math.max(1, ...minutes.flatMap(m => m.counts)));
  for (const minute of minutes) {
    const x = left + (minute.from_ms - first) / 60000 * w;
    minute.counts.forEach((n, place) => {
      if (!n) return;
      const cell = put("rect", null, svg, {class: lateness.bounds_ms[place - 1] >= 1000 ? "cell late" : "cell", x, y: H - 22 - (place + 1) * 14, width: Math.max(1, w - .5), height: 13, "fill-opacity": (.15 + .85 * Math.log1p(n) / peak).toFixed(2)});
      put("title", `${at(minute.from_ms, true)}: ${number(n)} ${bound(lateness, place)}`, cell);
    });
  }
  put("text", at(first, true), svg, {x: left, y: H - 7});
  if (count * w > 260) put("text", "now", svg, {x: Math.min(W - 8, left + (last - first) / 60000 * w + w), y: H - 7, "text-anchor": last - first > 600000 ? "end" : "start", visibility: last - first > 600000 ? "visible" : "hidden"});
}

// ---------------------------------------------------------------------------------------------- forecast

async function showForecast() {
  if (view.follows) view.from = Math.floor(now);
  const wanted = Math.max(10, Math.min(120, Math.floor(($("forecast").clientWidth || 900) / 9)));
  const count = Math.max(1, Math.min(wanted, view.span));
  const mine = ++asked.forecast, f = await need("pending/forecast?" + query({from: Math.round(view.from), to: Math.round(view.from + view.span), bars: count, topic: $("of").value}));
  if (mine !== asked.forecast) return;
  bars = f.bars;
  drawForecast(f);
}

function drawForecast(f) {
  const svg = $("forecast"), W = Math.max(300, svg.clientWidth || 900), H = 190, low = H - 24, top = 22;
  const count = Math.round((f.to_ms - f.from_ms) / f.step_ms) || 1, w = (W - 16) / count;
  const most = Math.max(0, ...f.bars.map(b => b[1])), within = f.bars.reduce((sum, bar) => sum + bar[1], 0), mean = within / count;
  svg.setAttribute("viewBox", `0 0 ${W} ${H}`);
  svg.replaceChildren();
  put("line", null, svg, {class: "axis", x1: 8, x2: W - 8, y1: low, y2: low});
  if (most) put("text", `${number(most)} in ${length(f.step_ms)}`, svg, {x: 8, y: 14});
  f.bars.forEach(([from, n], place) => {
    const x = 8 + (from - f.from_ms) / f.step_ms * w, h = Math.max(2, n / most * (low - top)), hot = n > 3 * mean && n > 1;
    put("rect", null, svg, {class: hot ? "column hot" : "column", x, y: low - h, width: Math.max(1, w - 1), height: h});
    if (hot) put("circle", null, svg, {class: "dot", cx: x + w / 2, cy: Math.max(5, low - h - 5), r: 3});
    const target = put("rect", null, svg, {class: "target", x, y: 0, width: Math.max(1, w), height: H, "data-bar": place});
    put("title", `${number(n)} due within ${length(f.step_ms)} from ${at(from)}`, target);
    if (place === chosen) put("rect", null, svg, {class: "chosen", x: x - 1, y: low - h - 1, width: w + 1, height: h + 2});
  });
  put("text", at(f.from_ms, true), svg, {x: 8, y: H - 7});
  put("text", at(f.to_ms, true), svg, {x: W - 8, y: H - 7, "text-anchor": "end"});
  const one = bars[chosen];
  const parts = [`${number(within)} from ${at(f.from_ms)} to ${at(f.to_ms)}`];
  if (!$("of").value) parts.push(`${number(f.overdue)} before`, `${number(f.later)} later`); // of a topic they are not counted
  $("forecast-text").textContent = parts.join(", ") + (f.exact ? "." : " (about).") + (one ? ` Chosen: ${number(one[1])} from ${at(one[0])}.` : "");
  for (const button of document.querySelectorAll("[data-span]")) button.setAttribute("aria-pressed", String(view.follows && view.span === +button.dataset.span));
}

function look(from, span, follows, remember = true) {
  if (remember) before = [...before.slice(-20), view];
  view = {from, span: Math.max(10, span), follows};
  chosen = -1;
  return turn(showForecast);
}

function zoomIn(place) {
  if (!bars[place]) return;
  const step = view.span / Math.max(10, Math.min(120, Math.floor(($("forecast").clientWidth || 900) / 9)));
  if (view.span > 10) look(bars[place][0], Math.max(10, Math.ceil(step)), false);
}

function zoomOut() {
  const last = before.pop();
  if (last) look(last.from, last.span, last.follows, false); else look(now, 3600000, true, false);
}

$("forecast").addEventListener("click", event => { const bar = event.target.dataset.bar; if (bar != null) zoomIn(+bar); });
$("forecast").addEventListener("keydown", event => {
  const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
  if (step && bars.length) { chosen = Math.max(0, Math.min(bars.length - 1, chosen + step)); turn(showForecast); }
  else if (event.key === "Enter") zoomIn(chosen);
  else if (event.key === "Escape") zoomOut();
  else return;
  event.preventDefault();
});
for (const button of document.querySelectorAll("[data-span]")) button.addEventListener("click", () => look(now, +button.dataset.span, true));
$("earlier").addEventListener("click", () => look(Math.max(0, view.from - view.span / 2), view.span, false));
$("later").addEventListener("click", () => look(view.from + view.span / 2, view.span, false));
$("out").addEventListener("click", zoomOut);
$("of").addEventListener("change", () => turn(showForecast));
$("all").addEventListener("click", () => turn(async () => {
  const {pending: p} = await need("overview");
  const first = Math.min(p.oldest_overdue_ms ?? now, now), last = p.last_due_ms ?? now + 3600000;
  await look(first, last - first + 100, false);
}));

// ---------------------------------------------------------------------------------------------- topics

async function showTopics() {
  const t = await need("topics?limit=1000");
  topics = t.topics;
  counted = t.known;
  drawTopics();
  const names = topics.map(row => row.topic).join("\n");
  if (names !== lastTopic) {
    lastTopic = names;
    const wanted = $("of").value;
    $("of").replaceChildren();
    put("option", "all", $("of"), {value: ""});
    $("names").replaceChildren();
    for (const row of topics.slice(0, 200)) { put("option", row.topic, $("of"), {value: row.topic}); put("option", null, $("names"), {value: row.topic}); }
    $("of").value = [...$("of").options].some(o => o.value === wanted) ? wanted : "";
  }
}

function drawTopics() {
  const shown = [...topics].sort((a, b) => (a[sort.by] < b[sort.by] ? -1 : a[sort.by] > b[sort.by] ? 1 : 0) * (sort.down ? -1 : 1)).slice(0, 200);
  const body = $("topics").tBodies[0], held = document.activeElement?.dataset?.topic;
  body.replaceChildren();
  for (const row of shown) {
    const tr = put("tr", null, body);
    const button = put("button", row.topic, put("td", null, tr), {type: "button", "data-topic": row.topic});
    put("td", number(row.count) + (row.known ? "" : " +"), tr, {class: "number"});
    put("td", (row.bytes_exact ? "" : "≈ ") + size(row.bytes), tr, {class: "number", title: row.bytes_exact ? "" : "about: its share of all, by the count"});
    if (row.topic === held) button.focus();
  }
  if (!shown.length) put("td", !pending ? "nothing is pending" : counted ? "not counted by topic" : "not counted yet", put("tr", null, body), {colspan: 3});
}

$("topics").addEventListener("click", event => {
  const {sort: by, topic} = event.target.dataset;
  if (by) {
    sort = {by, down: sort.by === by ? !sort.down : by !== "topic"};
    for (const th of $("topics").querySelectorAll("th")) {
      const own = th.firstChild.dataset.sort === sort.by;
      th.setAttribute("aria-sort", own ? (sort.down ? "descending" : "ascending") : "none");
    }
    drawTopics();
  } else if (topic != null) { $("topic").value = topic; $("id").value = ""; find(); }
});

// ---------------------------------------------------------------------------------------------- messages

async function list(more = false) {
  const mine = ++asked.list;
  let wanted = 50;
  if (!more) { rows = []; next = ""; }
  deep = more;
  for (let round = 0; round < 30 && wanted > 0 && next != null; round++) {  // an answer may stop before it has found enough
    const page = await need("pending?" + query({...filter, limit: wanted, after: next}));
    if (mine !== asked.list) return;  // something else was asked for meanwhile
    rows = [...rows, ...page.messages];
    wanted -= page.messages.length;
    next = page.next;
    drawRows();
  }
}

function drawRows() {
  const body = $("rows").tBodies[0];
  body.replaceChildren();
  for (const row of rows) {
    const tr = put("tr", null, body);
    put("td", at(row.due_ms) + (row.failed ? " (failed)" : ""), tr);
    put("td", row.topic, tr);
    put("td", row.key || row.unique_key, tr);
    put("td", number(row.size), tr, {class: "number"});
    put("button", "Open", put("td", null, tr), {type: "button", "data-id": row.id, "aria-label": "Open the message due " + at(row.due_ms)});
  }
  $("more").hidden = !next;
  $("found").textContent = rows.length ? `${number(rows.length)} shown, the next due first.` : next ? "Nothing found so far." : "Nothing found.";
}

async function find() {
  const id = $("id").value.trim(), topic = $("topic").value.trim();
  filter = {topic};
  try {
    if (!id) return await list();
    const isId = /^([0-9A-Fa-f]{32}|[0-9A-Fa-f]{56}|[0-9]{19}|0x[0-9A-Fa-f]+)$/.test(id);
    if (isId || topic) {
      const name = isId ? id : "key:" + id;
      const answer = await ask(`pending/${encodeURIComponent(name)}?` + query({topic}));
      if (answer.status === 200) { $("found").textContent = "Found."; return show(answer.found); }
      if (isId || answer.status !== 404) { $("found").textContent = words(answer); return; }
    }
    filter = {topic, key_prefix: id};
    await list();
  } catch (error) { $("found").textContent = String(error.message); }
}

$("find").addEventListener("submit", event => { event.preventDefault(); find(); });
$("more").addEventListener("click", () => turn(() => list(true)));
$("rows").addEventListener("click", event => { const id = event.target.dataset.id; if (id) turn(() => openOne(id)); });

// ---------------------------------------------------------------------------------------------- one message

async function openOne(id) {
  const answer = await ask("pending/" + encodeURIComponent(id));
  if (answer.status === 200) show(answer.found); else { $("found").textContent = words(answer); }
}

function show(message, keepVerdict = false) {
  open = message;
  $("one").hidden = false;
  if (!keepVerdict) { $("verdict").textContent = ""; $("verdict").className = ""; }
  drawOne(message);
  pairs($("properties"), Object.entries(message.properties));
  const bytes = Uint8Array.from(atob(message.body_base64), c => c.charCodeAt(0));
  let text;
  try { text = new TextDecoder("utf-8", {fatal: true}).decode(bytes); } catch { text = [...bytes.slice(0, 2048)].map(b => pad(b.toString(16))).join(" "); }
  $("body").textContent = text + (message.body_bytes > bytes.length ? `\n… ${number(message.body_bytes)} bytes` : "");
  for (const button of $("verbs").querySelectorAll("[data-verb]")) button.disabled = false;
  if (!keepVerdict) { $("one-title").focus(); $("one").scrollIntoView({block: "nearest"}); }
}

function drawOne(m) {
  pairs($("about"), [["Due", `${at(m.due_ms)}, ${away(m.due_ms)}`], ["Topic, queue", `${m.topic}, ${m.queue_id}`], ["Message id", m.id],
    ["Delay key", m.key || "–"], ["Tag", m.tag || "–"], ["Accepted", at(m.accepted_ms)], ["Version", String(m.version)], ["Bytes", number(m.size)],
    ...(m.broker ? [["Shard", m.broker]] : []), ...(m.others || []).map(o => ["Same key on " + o.broker, twin(o)])]);
}

// A delay key may name a message on each shard: the buttons change the one that is shown, the others are found by their id.
const twin = o => o.verdict === "done" ? `waits, too, due ${at(o.due_ms)}: ${o.id}` : words({status: 200, found: o});

function words({status, found}) {
  if (found.error) return found.error;
  const when = found.when_ms ? ` at ${at(found.when_ms)}` : "", where = found.where ? ` (${found.where})` : "";
  const text = {done: "done", already: "already so", too_late: "too late: it was delivered" + when + where, cancelled: "it was cancelled" + when,
    changed: "it was changed meanwhile: look again", unknown: "unknown: nothing is pending under this name", refused: "refused"}[found.verdict] || "HTTP " + status;
  return text + (found.detail && !text.includes(found.detail) ? ": " + found.detail : "");
}

function milliseconds(text) {
  const match = /^\s*([+-]?\d{1,9}(?:\.\d+)?)\s*(ms|s|m|h|d)\s*$/.exec(text);
  return match ? Math.round(+match[1] * {ms: 1, s: 1000, m: 60000, h: 3600000, d: 86400000}[match[2]]) : null;
}

function say(text, good) { $("verdict").textContent = text; $("verdict").className = good ? "good" : "bad"; }

$("verbs").addEventListener("click", async event => {
  const verb = event.target.dataset.verb;
  if (!verb || !open) return;
  const order = {version: open.version};
  if (verb === "move") {
    order.by_ms = milliseconds($("by").value);
    if (order.by_ms == null) return say(`"${$("by").value}" is no time: write 10m, 2h or -30s`, false);
  }
  event.target.disabled = true;
  try {
    const id = open.id, answer = await ask(`pending/${id}/${verb}`, {method: "POST", body: JSON.stringify(order)});
    const text = `${event.target.textContent}: ${words(answer)}`, good = answer.status === 200;
    say(text, good);
    const after = await ask("pending/" + id);
    if (after.status === 200) show(after.found, true);
    else {
      if (good && verb !== "cancel") say(`${text}. Gone: ${words(after)}`, true);  // it has fired meanwhile
      gone();
    }
    await turn(() => list());
  } catch (error) { say(String(error.message), false); }
  finally { if (open) event.target.disabled = false; }
});

function gone() {
  open = null;
  for (const button of $("verbs").querySelectorAll("[data-verb]")) button.disabled = true;
}

$("close").addEventListener("click", () => { open = null; $("one").hidden = true; $("id").focus(); });

async function watch() {
  if (!open || $("one").hidden) return;
  drawOne(open);
  if (open.due_ms > now + 1000) return;
  const answer = await ask("pending/" + open.id);
  if (answer.status === 200) { open = answer.found; return; }
  say("Gone: " + words(answer), true);
  gone();
  await list();
}

// ---------------------------------------------------------------------------------------------- live

async function turn(work) {
  try { await work(); failing = 0; }
  catch (error) {
    failing++;
    $("state").className = "bad";
    $("state").textContent = error instanceof TypeError ? "The broker cannot be reached; trying again." : String(error.message);
  }
}

let count = 0;
async function live() {
  if (!document.hidden) {
    now = Date.now() + skew;
    await turn(showOverview);
    if (!failing) {
      if (count % 2 === 0 || view.span <= 60000) await turn(showForecast);
      if (count % 3 === 0) await turn(showTopics);
      if (count % 5 === 0 && rows.length && rows.length <= 50 && !deep && $("rows").contains(document.activeElement) === false) await turn(() => list());
      await turn(watch);
    }
    count++;
  }
  setTimeout(live, failing ? Math.min(10000, 1000 * failing) : 1000);
}

$("login").addEventListener("submit", event => {
  event.preventDefault();
  const secret = $("secret").value.trim();
  auth = secret.includes(":") ? "Basic " + btoa(secret) : "Bearer " + secret;
  sessionStorage.setItem("authorization", auth);
  $("secret").value = "";
  failing = 0;
  turn(showOverview);
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) turn(showOverview); });
live();
