"use strict";
// What every page over /api/v1 does; what differs is in `own`, which the page's own script has. What messages contain is only ever put into the page as text, never as HTML.
const $ = id => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
let auth = sessionStorage.getItem("authorization") || "";
let now = Date.now(), skew = 0;            // the server's clock, and by how much it differs from this one
let view = {from: 0, span: 3600000, follows: true}, before = [], chosen = -1, bars = [];
let rows = [], next = null, filter = {}, open = null;
let watched = 0, failing = 0, pending = 0, deep = false;  // deep: the list was gone on with, and is not begun anew
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
const size = n => { if (n == null) return "–"; for (const u of ["B", "KiB", "MiB", "GiB"]) { if (n < 1024) return (n < 10 && u !== "B" ? n.toFixed(1) : Math.round(n)) + " " + u; n /= 1024; } return n.toFixed(1) + " TiB"; };
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
  if (ms == null) return "–";
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

// ---------------------------------------------------------------------------------------------- figures

function drawFigures(figures) {
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
  if (own.unsearched?.()) $("found").textContent += ` ${own.unsearched()}`;
}

async function find() {
  const id = $("id").value.trim(), topic = $("topic").value.trim();
  filter = {topic};
  asked.list++;  // what a list under way still finds is not shown any more
  try {
    if (!id) return await list();
    const {name, sure, topic: its, filter: others} = own.named(id, topic);
    if (name) {
      const answer = await ask(`pending/${encodeURIComponent(name)}?` + query({topic: its}));
      if (answer.status === 200) { $("found").textContent = "Found."; return show(answer.found); }
      if (sure || answer.status !== 404) { $("found").textContent = words(answer); return; }
    }
    filter = others;
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
  pairs($("properties"), Object.entries(message.properties || {}));
  const bytes = Uint8Array.from(atob(message.body_base64 || ""), c => c.charCodeAt(0));
  let text;
  try { text = new TextDecoder("utf-8", {fatal: true}).decode(bytes); } catch { text = [...bytes.slice(0, 2048)].map(b => pad(b.toString(16))).join(" "); }
  $("body").textContent = text + (message.body_bytes > bytes.length ? `\n… ${number(message.body_bytes)} bytes` : "");
  for (const button of $("verbs").querySelectorAll("[data-verb]")) button.disabled = false;
  if (!keepVerdict) { $("one-title").focus(); $("one").scrollIntoView({block: "nearest"}); }
}

function drawOne(m) {
  pairs($("about"), own.about(m));
}

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
  const order = own.order(open);
  if (verb === "move") {
    order.by_ms = milliseconds($("by").value);
    if (order.by_ms == null) return say(`"${$("by").value}" is no time: write 10m, 2h or -30s`, false);
  }
  event.target.disabled = true;
  const searched = asked.list;
  try {
    const id = encodeURIComponent(open.id), answer = await ask(`pending/${id}/${verb}`, {method: "POST", body: JSON.stringify(order)});
    const text = `${event.target.textContent}: ${words(answer)}`, good = answer.status === 200;
    say(text, good);
    const after = await ask("pending/" + id);
    if (after.status === 200) show(after.found, true);
    else {
      if (good && verb !== "cancel") say(`${text}. Gone: ${words(after)}`, true);  // it has fired meanwhile
      gone();
    }
    if (searched === asked.list) await turn(() => list());  // unless something else was asked for meanwhile
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
  if (open.due_ms > now + 1000 || now - watched < (own.patience || 0)) return;
  watched = now;
  const answer = await ask("pending/" + encodeURIComponent(open.id));
  if (answer.status === 200) { open = answer.found; return; }
  if (answer.status >= 500) return say(words(answer), false);  // it is not known now
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
    $("state").textContent = error instanceof TypeError ? `The ${own.whose} cannot be reached; trying again.` : String(error.message);
  }
}

let count = 0;
async function live() {
  if (!document.hidden) {
    now = Date.now() + skew;
    await turn(showOverview);
    if (!failing) {
      if (count % 2 === 0 || view.span <= 60000) await turn(showForecast);
      await own.more(count);
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
