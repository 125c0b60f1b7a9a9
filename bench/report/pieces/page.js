"use strict";
// Tables sort by a click on a head, or Enter on it: upwards first, then downwards. Without this they are just tables.
for (const table of document.querySelectorAll("table.sorts")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  const number = /^(?:at least |< )?([+-]?[\d,]+(?:\.\d+)?)(?:\u00a0(?:ms|%)(?: \(.*\))?)?$/;
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const way = head.ariaSort === "ascending" ? -1 : 1;
      const keyed = [...body.rows].map((row, place) => {
        const cell = row.cells[column], words = cell.textContent.trim(), found = number.exec(words);
        const value = cell.dataset.v ?? (found ? found[1].replaceAll(",", "") : "");
        return {row, place, words, value: value === "" ? NaN : Number(value)};
      });
      const numeric = keyed.some((one) => !Number.isNaN(one.value));
      keyed.sort((one, other) => {
        if (!numeric) return way * one.words.localeCompare(other.words) || one.place - other.place;
        const empty = Number.isNaN(one.value) - Number.isNaN(other.value);
        return empty || way * (one.value - other.value) || one.place - other.place;
      });
      body.append(...keyed.map((one) => one.row));
      for (const each of heads) each.ariaSort = null;
      head.ariaSort = way > 0 ? "ascending" : "descending";
    });
  });
}
