// Changes by a query, in two steps: what matches is counted and shown, and nothing is changed before that is confirmed.
// A change is made call by call, each with the cursor of the one before. A call that failed is made again with its own
// cursor: each says what is to be, not what is to be added (`whyNotAgain`), so what it had done is not done twice.
const TOLD = {done: "done", already: "already so", too_late: "too late", cancelled: "cancelled", changed: "changed meanwhile",
  unknown: "unknown", refused: "refused", undecided: "UNDECIDED"};
const ROUNDS_MAX = 100, UNDECIDED_SHOWN = 20;
let plan = null;

// ---------------------------------------------------------------------------------------------- the form

function readPlan() {
  const moment = id => {
    if (!$(id).validity.valid) throw Error("a time is not written out: complete it, or empty it");
    return $(id).value ? new Date($(id).value).getTime() : "";
  };
  const given = {topic: $("bulk-topic").value.trim(), tag: $("bulk-tag").value.trim(), due_from: moment("bulk-from"), due_to: moment("bulk-to"), ...own.bulk.key($("bulk-key").value)};
  const filters = Object.fromEntries(Object.entries(given).filter(([, value]) => value !== ""));
  const [verb, how] = $("bulk-verb").value.split("-"), order = {query: filters};
  let what = own.bulk.verbs[$("bulk-verb").value];
  if (how === "by") {
    order.by_ms = milliseconds($("bulk-by").value);
    if (order.by_ms == null) throw Error(`"${$("bulk-by").value}" is no time: write 10m, 2h or -30s`);
    const why = whyNotAgain(filters, order.by_ms);
    if (why) throw Error(why);
    what += ` ${$("bulk-by").value.trim()}`;
  }
  if (how === "to") {
    order.due_ms = moment("bulk-due");
    if (order.due_ms === "") throw Error("say to which time");
    what += ` ${at(order.due_ms)}`;
  }
  order.limit = own.bulk.limit(verb, order.by_ms || 0);
  return {verb, what, order, filters, count: 0, uncounted: false, after: "", told: {}, undecided: new Map(), unread: 0, remark: "", again: null, repeats: false, running: false, stop: false, trouble: ""};
}

// Why a move by an interval cannot be asked for twice: what was moved must not match any more.
function whyNotAgain({due_from: first, due_to: last}, by) {
  const text = $("bulk-by").value.trim().replace(/^[+-]/, "");
  if (!by) return "by 0 nothing is moved";
  if (first != null && last != null && last - first <= Math.abs(by)) return "";
  return `a move by ${text} needs both due times, at most ${text} apart: else what was moved would match again, and be moved twice`;
}

async function countPlan() {
  plan = null;
  $("bulk-told").textContent = "";
  $("bulk-undecided").replaceChildren();
  try {
    const made = plan = readPlan();
    made.running = true;
    $("bulk-asked").textContent = "Counting …";
    showPlan();
    const trial = await ask("bulk/" + made.verb, {method: "POST", body: JSON.stringify({...made.order, limit: Math.min(1000, made.order.limit), dry_run: true})});
    if (trial.status >= 400) throw Error(words(trial));
    const found = await countMatching(made);
    made.running = false;
    made.count = found.count;
    made.uncounted = found.more;
    $("bulk-asked").textContent = countText(made, found, trial.found);
    if (!found.count && !found.more) plan = null;
  } catch (error) {
    plan = null;
    $("bulk-asked").textContent = "Nothing was changed: " + error.message;
  }
  showPlan();
}

async function countMatching(made) {
  let count = 0, first = null, last = null, after = "", unread = 0, remark = "";
  for (let round = 0; round < ROUNDS_MAX && after != null && !made.stop; round++) {
    const found = await need("pending/count?" + query({...made.filters, after}));
    count += found.count;
    unread += found.unread || 0;
    remark = joined(remark, found.remark);
    if (found.first_due_ms != null) first = Math.min(first ?? found.first_due_ms, found.first_due_ms);
    if (found.last_due_ms != null) last = Math.max(last ?? found.last_due_ms, found.last_due_ms);
    after = found.next;
    if (after != null) $("bulk-asked").textContent = `${number(count)} so far …`;
  }
  return {count, first, last, more: after != null, left: passedOver(unread, remark)};
}

// What can be neither read nor compared with the query stays as it is: nobody knows whether it matches.
const REMARK_CHARS_ENOUGH = 2000;
const joined = (remark, more) => more && remark.length < REMARK_CHARS_ENOUGH && !remark.includes(more) ? `${remark}${remark && "; "}${more}` : remark;
const passedOver = (unread, remark) => unread ? `${number(unread)} that cannot be read may match and stay as they are (${remark}).` : "";

function countText(made, {count, first, last, more, left}, trial) {
  const unsearched = [left, own.unsearched?.()].filter(Boolean).join(" "), refused = trial.verdicts.refused;
  if (!count && !more) return `Nothing ${left ? "that can be read " : ""}matches. ${unsearched}`;
  const parts = [`${more ? "At least " : ""}${number(count)} match${first == null ? "" : `, due from ${at(first)} to ${at(last)}`}.`];
  if (refused) parts.push(`Of the first ${number(sumOf(trial.verdicts))} ${number(refused)} would be refused, as they would be in the past.`);
  parts.push(`To be done: ${made.what}. What matches by then is changed, be it more or less.`);
  return [...parts, unsearched].filter(Boolean).join(" ");
}

const sumOf = verdicts => Object.values(verdicts).reduce((sum, n) => sum + n, 0);

function showPlan() {
  const running = !!plan?.running, go = $("bulk-go"), ended = plan && plan.after == null, held = document.activeElement;
  for (const field of $("bulk").elements) field.disabled = running;
  $("bulk-stop").hidden = !running;
  if (running && (held === go || held?.form === $("bulk"))) $("bulk-stop").focus();
  if (!running && held === $("bulk-stop")) $("bulk-count").focus({preventScroll: true});
  go.hidden = !plan || running || (ended && !plan.undecided.size);
  if (!plan) return;
  const many = `${plan.uncounted ? "at least " : ""}${number(plan.count)}`;
  go.textContent = ended ? `Ask again for the undecided` : plan.begun ? "Go on" : `Yes, ${plan.what}: ${many}`;
}

// ---------------------------------------------------------------------------------------------- the change

async function carryOut() {
  const p = plan;
  if (!p || p.running) return;
  if (p.after == null) { p.after = p.again; p.again = null; p.repeats = true; }
  p.running = p.begun = true;
  p.stop = false;
  p.trouble = "";
  showPlan();
  tell(p);
  try {
    do {
      const begun = p.after, {status, found} = await ask("bulk/" + p.verb, {method: "POST", body: JSON.stringify({...p.order, dry_run: false, after: begun})});
      if (status >= 400) throw Error(words({status, found}));
      addUp(p, found);
      if (found.undecided && p.again == null) p.again = begun;
      p.after = found.next;
      if (found.error) throw Error(found.error);
      if (p.after === begun && !sumOf(found.verdicts)) throw Error("the last call got no further");
      tell(p);
    } while (p.after != null && !p.stop);
  } catch (error) {
    p.trouble = error instanceof TypeError ? `the ${own.whose} gave no answer, what the last call has changed is not known` : error.message;
  }
  p.running = false;
  showPlan();
  tell(p);
  if (rows.length && !deep) await turn(() => list());
  await own.more(0);
}

function addUp(p, found) {
  const repeated = p.repeats ? found.answers.filter(one => one.verdict !== "already" || p.undecided.has(one.id)) : [];
  const verdicts = p.repeats ? countedBy(repeated) : found.verdicts;
  if (!p.repeats) p.unread += found.unread || 0;
  p.remark = joined(p.remark, found.remark);
  for (const [verdict, n] of Object.entries(verdicts)) if (verdict !== "undecided") p.told[verdict] = (p.told[verdict] || 0) + n;
  for (const one of found.answers) {
    if (one.verdict === "undecided") p.undecided.set(one.id, one.detail);
    else p.undecided.delete(one.id);
  }
}

const countedBy = answers => answers.reduce((sums, {verdict}) => ({...sums, [verdict]: (sums[verdict] || 0) + 1}), {});

function tell(p) {
  const parts = Object.entries(p.told).map(([verdict, n]) => `${number(n)} ${TOLD[verdict] || verdict}`);
  if (p.undecided.size) parts.push(`${number(p.undecided.size)} ${TOLD.undecided}`);
  const so = p.running ? "Under way" : p.trouble ? "Stopped" : p.after != null ? "Stopped, the rest is as before" : "Ended";
  const text = [`${so}: ${parts.join(", ") || "nothing so far"} (of ${p.uncounted ? "at least " : ""}${number(p.count)} counted).`];
  if (p.trouble) text.push(`${p.trouble}. “Go on” makes the last call again, and changes nothing twice.`);
  if (p.unread) text.push(passedOver(p.unread, p.remark));
  if (p.undecided.size) text.push("Undecided: no verdict came. The command may stand, or never have been stored: ask again, or look at each.");
  $("bulk-told").textContent = text.join(" ");
  $("bulk-told").className = p.trouble || p.undecided.size || p.unread ? "bad" : "good";
  drawUndecided(p);
}

function drawUndecided(p) {
  const listed = $("bulk-undecided");
  listed.replaceChildren();
  if (p.running) return;
  for (const [id, said] of [...p.undecided].slice(0, UNDECIDED_SHOWN)) {
    const item = put("li", `${id} – ${said} `, listed);
    put("button", "Look", item, {type: "button", "data-id": id, "aria-label": "Look at " + id});
  }
  if (p.undecided.size > UNDECIDED_SHOWN) put("li", `and ${number(p.undecided.size - UNDECIDED_SHOWN)} more`, listed);
}

// What a look says is its shard's word: one that waits may still be changed by its command, any other is decided.
async function lookAt(id) {
  const p = plan;
  if (!p?.undecided.has(id)) return;
  const answer = await ask("pending/" + encodeURIComponent(id));
  if (p !== plan) return;
  if (answer.status >= 500 || answer.status === 401) p.undecided.set(id, words(answer));
  else if (answer.status === 200) p.undecided.set(id, `it waits, due ${at(answer.found.due_ms)}`);
  else {
    const verdict = answer.found.verdict || "unknown";
    p.undecided.delete(id);
    p.told[verdict] = (p.told[verdict] || 0) + 1;
  }
  showPlan();
  tell(p);
}

// ---------------------------------------------------------------------------------------------- what is pressed

function showFields() {
  $("bulk-by-label").hidden = $("bulk-verb").value !== "move-by";
  $("bulk-due-label").hidden = $("bulk-verb").value !== "move-to";
}

function prepareBulk() {
  $("bulk-key-name").textContent = own.bulk.keyName;
  for (const [value, text] of Object.entries(own.bulk.verbs)) put("option", text, $("bulk-verb"), {value});
  showFields();
}

$("bulk").addEventListener("submit", event => { event.preventDefault(); if (!plan?.running) countPlan(); });
$("bulk").addEventListener("input", () => {  // what was counted is not what is asked for any more
  showFields();
  if (plan && !plan.running) { plan = null; $("bulk-asked").textContent = ""; showPlan(); }
});
$("bulk-go").addEventListener("click", () => turn(carryOut));
$("bulk-stop").addEventListener("click", () => { if (plan) plan.stop = true; });
$("bulk-undecided").addEventListener("click", event => { const id = event.target.dataset.id; if (id) turn(() => lookAt(id)); });
