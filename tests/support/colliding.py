"""Words whose hash in the key index is a wanted one: a CRC-32 is solved, not searched."""

from __future__ import annotations

from store.derived.key_rows import key_hash

__all__ = ["word_of"]

_BITS = 64


def word_of(topic: str, wanted: int) -> str:
    """Make a word of 64 letters that has this hash as a key of a topic.

    A CRC is linear: each place, ``a`` or ``b``, adds the same bits to the sum whatever the others are.
    """
    plain = "a" * _BITS
    base = key_hash(topic, plain)
    rows = []  # (bits of the sum, places)
    for place in range(_BITS):
        bits, places = key_hash(topic, plain[:place] + "b" + plain[place + 1 :]) ^ base, 1 << place
        for other_bits, other_places in rows:
            if bits ^ other_bits < bits:
                bits, places = bits ^ other_bits, places ^ other_places
        if bits:
            rows.append((bits, places))
            rows.sort(reverse=True)
    rest, chosen = wanted ^ base, 0
    for bits, places in rows:
        if rest ^ bits < rest:
            rest, chosen = rest ^ bits, chosen ^ places
    if rest:
        raise ValueError(f"no word of {_BITS} letters has the hash {wanted}")
    return "".join("b" if chosen >> place & 1 else "a" for place in range(_BITS))
