// The page of a broker: the scripts of `http_door` stand before it.

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
  drawFigures(figures);
  $("late-text").textContent = lateText(o.lateness);
  drawLate(o.lateness);
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

// ---------------------------------------------------------------------------------------------- topics

async function showTopics() {
  const t = await need("topics?limit=1000");
  topics = t.topics;
  counted = t.known;
  drawTopics();
}

// ---------------------------------------------------------------------------------------------- what is a broker's own

const isId = /^([0-9A-Fa-f]{32}|[0-9A-Fa-f]{56}|[0-9]{19}|0x[0-9A-Fa-f]+)$/;
const own = {
  whose: "broker",
  order: message => ({version: message.version}),
  about: m => [["Due", `${at(m.due_ms)}, ${away(m.due_ms)}`], ["Topic, queue", `${m.topic}, ${m.queue_id}`], ["Message id", m.id],
    ["Delay key", m.key || "–"], ["Tag", m.tag || "–"], ["Accepted", at(m.accepted_ms)], ["Version", String(m.version)], ["Bytes", number(m.size)],
    ...(m.broker ? [["Shard", m.broker]] : []), ...(m.others || []).map(o => ["Same key on " + o.broker, twin(o)])],
  // What to look up first, and what to list if that is not found: of a key one that has it, then all that begin with it.
  named: (id, topic) => isId.test(id) ? {name: id, sure: true, topic} : {name: topic ? "key:" + id : "", topic, filter: {topic, key_prefix: id}},
  offered: names => {
    const wanted = $("of").value;
    $("of").replaceChildren();
    put("option", "all", $("of"), {value: ""});
    for (const name of names) put("option", name, $("of"), {value: name});
    $("of").value = names.includes(wanted) ? wanted : "";
  },
  bulk: {
    verbs: {cancel: "cancel", now: "deliver now", restart: "restart the delay", "move-by": "move by", "move-to": "move to"},
    keyName: "delay key, or its beginning",
    key: text => ({key_prefix: text}),
    limit: (verb, byMs) => verb === "restart" || byMs > 0 ? 10000 : 1000,  // what moves to later is done in one call
  },
  more: async round => { if (round % 3 === 0) await turn(showTopics); },
};

// A delay key may name a message on each shard: the buttons change the one that is shown, the others are found by their id.
const twin = o => o.verdict === "done" ? `waits, too, due ${at(o.due_ms)}: ${o.id}` : words({status: 200, found: o});

prepareBulk();
live();
