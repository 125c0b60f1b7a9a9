// The table of topics, on every page that has one: its head says which columns there are, and in which order rows stand.
let sort = {by: "count", down: true}, topics = [], counted = true, offered = "";
const SHOWN_TOPICS = 200;

const CELLS = {
  count: row => number(row.count) + (row.known === false ? " +" : ""),
  bytes: row => (row.bytes_exact === false ? "≈ " : "") + size(row.bytes),
  first_due_ms: row => at(row.first_due_ms),
  last_due_ms: row => at(row.last_due_ms),
};

function drawTopics() {
  const by = sort.by, shown = [...topics].sort((a, b) => (a[by] < b[by] ? -1 : a[by] > b[by] ? 1 : 0) * (sort.down ? -1 : 1)).slice(0, SHOWN_TOPICS);
  const body = $("topics").tBodies[0], held = document.activeElement?.dataset?.topic;
  const columns = [...$("topics").querySelectorAll("thead [data-sort]")].map(button => button.dataset.sort).filter(name => name !== "topic");
  body.replaceChildren();
  for (const row of shown) {
    const tr = put("tr", null, body);
    const button = put("button", row.topic, put("td", null, tr), {type: "button", "data-topic": row.topic});
    for (const name of columns) {
      const about = name === "bytes" && row.bytes_exact === false;
      put("td", CELLS[name](row), tr, {class: "number", title: about ? "about: its share of all, by the count" : ""});
    }
    if (row.topic === held) button.focus();
  }
  if (!shown.length) put("td", pending == null ? "–" : !pending ? "nothing is pending" : counted ? "not counted by topic" : "not counted yet", put("tr", null, body), {colspan: columns.length + 1});
  offerTopics();
}

// What the fields for a topic offer.
function offerTopics() {
  const names = topics.slice(0, SHOWN_TOPICS).map(row => row.topic);
  if (names.join("\n") === offered) return;
  offered = names.join("\n");
  $("names").replaceChildren();
  for (const name of names) put("option", null, $("names"), {value: name});
  own.offered?.(names);
}

$("topics").addEventListener("click", event => {
  const {sort: by, topic} = event.target.dataset;
  if (by) {
    sort = {by, down: sort.by === by ? !sort.down : by !== "topic"};
    for (const th of $("topics").querySelectorAll("th")) {
      const its = th.firstChild.dataset.sort === sort.by;
      th.setAttribute("aria-sort", its ? (sort.down ? "descending" : "ascending") : "none");
    }
    drawTopics();
  } else if (topic != null) { $("topic").value = topic; $("id").value = ""; find(); }
});
