// The page of an instance of the delay service: the scripts of `http_door` stand before it.

// ---------------------------------------------------------------------------------------------- overview

let partial = false;  // whether some shards are not shown, or not surely whole
const shown = name => (name || "–").replace(/#.*$/, "");  // of a member: its address and process

async function showOverview() {
  const o = await need("overview");
  skew = o.now_ms - Date.now(); now = o.now_ms;
  $("instance").textContent = `${o.topic}, ${shown(o.instance)}`;
  const there = o.shards.filter(s => s.count != null), missing = o.shards.filter(s => s.count == null);
  partial = !o.whole;
  const partly = o.whole ? "" : ` in ${there.length} of ${o.shards.length} shards`;
  document.title = `${number(o.pending.count)} pending${partly} · ${shown(o.instance)}`;
  const state = $("state");
  state.className = o.not_ready.length ? "bad" : "good";
  const text = o.not_ready.length ? "Not ready: " + o.not_ready.join("; ") : "Ready. Live, every second.";
  if (state.textContent !== text) state.textContent = text;
  showCovers(o, there, missing);
  pending = o.pending.count;
  const p = o.pending, late = p.oldest_overdue_ms == null ? 0 : now - p.oldest_overdue_ms;
  drawFigures([
    [o.whole ? "Pending" : "Pending in these shards", number(p.count)], ["Bytes, about", size(p.bytes)],
    ["Next due", away(p.next_due_ms)], ["Last due", away(p.last_due_ms)],
    ["Oldest overdue", p.count == null ? "–" : late > 0 ? length(late) : "none", late > 10000 ? "bad" : late > 1000 || p.count == null ? "warm" : "good"],
    ["Failed", number(p.failed) + (p.refused ? `, ${number(p.refused)} refused` : ""), p.failed ? "bad" : p.failed == null ? "warm" : "good"], ["Delivered here", number(o.delivered)], ["99 of 100 late by", quantile(o.lateness, .99)],
  ]);
  document.querySelector("#figures dt").textContent = o.whole ? "Pending" : "Pending in these shards";
  drawShards(o.shards);
  $("late-text").textContent = lateText(o.lateness).replace("since the start", "by this instance since its start");
}

function showCovers(o, there, missing) {
  const list = $("covers"), followed = there.filter(s => s.state === "followed").length, stale = there.filter(s => s.state === "stale");
  const parts = [`${number(there.length)} of ${number(o.shards.length)} shards are shown` + (followed ? `, ${number(followed)} of them as a follower` : "")];
  if (stale.length) parts.push(`may lack entries: ${some(stale.map(s => s.shard))}`);
  if (missing.length) parts.push(`NOT shown: ${some(missing.map(s => `${s.shard} (of ${shown(s.owner)})`))}`);
  const text = parts.join("; ") + ".";
  list.className = o.whole ? "good" : "bad";
  if (list.textContent !== text) list.textContent = text;
}

const some = names => names.length > 8 ? names.slice(0, 8).join(", ") + ` and ${number(names.length - 8)} more` : names.join(", ");

function drawShards(shards) {
  const body = $("shards").tBodies[0];
  body.replaceChildren();
  for (const s of shards.slice(0, 500)) {
    const tr = put("tr", null, body), late = s.oldest_overdue_ms == null ? 0 : now - s.oldest_overdue_ms;
    put("td", s.shard, tr);
    put("td", s.state + (s.detail && s.state !== "missing" ? ": " + s.detail : ""), tr, {class: s.state === "missing" || s.state === "stale" ? "bad" : "", title: s.detail});
    put("td", shown(s.owner), tr, {title: s.owner || ""});
    put("td", shown(s.standby), tr, {title: s.standby || ""});
    put("td", number(s.count), tr, {class: "number"});
    put("td", number(s.overdue), tr, {class: "number"});
    put("td", s.count == null ? "–" : late > 0 ? length(late) : "0", tr, {class: "number" + (late > 10000 ? " bad" : late > 1000 ? " warm" : "")});
    put("td", number(s.beyond_roll), tr, {class: "number"});
    put("td", number(s.doubts), tr, {class: "number"});
  }
  if (!shards.length) put("td", "not known yet", put("tr", null, body), {colspan: 9});
}

// ---------------------------------------------------------------------------------------------- topics

const BY_ITSELF_MAX = 5000, TOPICS_MAX = 100000;
let counting = false;
counted = false;

// Add up by topic, answer after answer, until all are read, or the button is pressed again.
async function countTopics(loud) {
  const sums = new Map();
  let after = "";
  counting = true;
  try {
    do {
      const t = await need("topics?" + query({after}));
      for (const row of t.topics) addTopic(sums, row);
      after = t.next;
      topics = [...sums.values()];
      counted = after == null;
      drawTopics();
      sayCounted(after == null ? "all are counted" : "not all are counted yet");
      if (loud || after != null) $("count-topics").textContent = after == null || !counting ? "Count by topic" : "Stop";
    } while (after != null && counting && sums.size < TOPICS_MAX);
    if (after != null) sayCounted(counting ? "more are not counted here" : "stopped: not all are counted");
  } catch (error) { $("topics-text").textContent = `Not counted: ${error.message}`; }
  finally { counting = false; $("count-topics").textContent = "Count by topic"; }
}

function addTopic(sums, row) {
  const known = sums.get(row.topic);
  if (!known) { sums.set(row.topic, {...row}); return; }
  known.count += row.count;
  known.bytes += row.bytes;
  known.first_due_ms = Math.min(known.first_due_ms, row.first_due_ms);
  known.last_due_ms = Math.max(known.last_due_ms, row.last_due_ms);
}

function sayCounted(how) {
  const parts = [`${at(now, true)}: ${number(topics.length)} topics, ${how}`];
  if (topics.length > SHOWN_TOPICS) parts.push(`the first ${number(SHOWN_TOPICS)} are shown`);
  $("topics-text").textContent = parts.join("; ") + "." + (partial ? " Shards that are not shown are not counted." : "");
}

$("count-topics").addEventListener("click", () => { if (counting) counting = false; else countTopics(true); });

// ---------------------------------------------------------------------------------------------- what is a service's own

const elsewhere = m => m.properties ? [] : [["Content", `is at the instance that owns ${m.shard}; this one does not follow it`]];
const own = {
  whose: "instance",
  order: () => ({}),
  patience: 3000,  // a look costs two records
  about: m => [["Due", `${at(m.due_ms)}, ${away(m.due_ms)}`], ["Named", m.id], ...(m.topic ? [["Topic", m.topic]] : []),
    ...(m.unique_key ? [["Message id", m.unique_key]] : []), ...(m.tag ? [["Tag", m.tag]] : []),
    ...(m.accepted_ms ? [["Accepted", at(m.accepted_ms)]] : []), ...(m.size ? [["Bytes", number(m.size)]] : []),
    ...(m.where && m.where !== m.id ? [["Rolled, stands at", m.where]] : []), ["Shard", m.shard], ...elsewhere(m)],
  // An entry's name is looked up in its shard, whoever owns that; ids and keys are searched for in the shards of this instance.
  named: (id, topic) => /^[^/]+\/\d{1,18}\/\d{1,18}$/.test(id) ? {name: id, sure: true}
    : {filter: {topic, property: (/^[0-9A-Fa-f]{32}$/.test(id) ? "UNIQ_KEY=" : "KEYS=") + id}},
  unsearched: () => partial ? "Shards that are not shown were not searched." : "",
  bulk: {
    verbs: {cancel: "cancel", now: "deliver now", "move-by": "move by", "move-to": "move to"},
    keyName: "key",
    key: text => ({property: text && "KEYS=" + text}),
    limit: () => 200,  // each is a command with a verdict: so the page shows how far it is
  },
  more: async round => {
    if (pending == null || pending > BY_ITSELF_MAX) { if (!topics.length) drawTopics(); }
    else if (round % 15 === 0 && !counting) countTopics(false);
  },
};

prepareBulk();
live();
