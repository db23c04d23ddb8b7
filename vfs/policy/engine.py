"""Which values hold for one access, and which rule gave each: ordered rules, later wins per value.

Pure: no I/O, no clock. `decide` is a function of its arguments; what a `RuleSet` remembers only makes it quick.

How it is quick (sketch for 200 rules): each rule is one bit of an int. The facts that take few values on a host (uid, job, …)
select a mask that is remembered by their tuple; the size selects one by bisection; the path selects candidates by its
leading components, its name, any component or its extension, which leaves a handful of regular expressions to try. The rules
that match are again an int, and the decision that follows from it is remembered: a host meets few different ones.
"""

from __future__ import annotations

import bisect
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from vfs.policy.facts import NARROW, OF_CALLERS, Facts, Match, SizeRange, conditions_of, mismatch
from vfs.policy.globs import Landmarks, landmarks
from vfs.policy.values import DEFAULTS, VALUES, Settings, Values, settings_of
from vfs.policy.written import Staleness

_narrow = operator.attrgetter(*NARROW)
_OF_ACCESSES = tuple(name for name in Match.__struct_fields__ if name not in OF_CALLERS)
REMEMBERED_MAX = 4096
"""Entries of each memory of a rule set; it starts anew when full. 4096 decisions take about 3 MB."""


Breathe = Callable[[], None]
"""Called between rules: whoever makes a set beside a loop lets the loop have the interpreter there."""


def hold_breath() -> None:
    """Go on: nobody waits."""


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One rule as documents state it.

    Attributes:
        name: unique in its document.
        why: for people.
    """

    name: str
    match: Match
    set: Settings
    why: str = ""


class Document(msgspec.Struct, frozen=True):
    """One file of rules.

    Attributes:
        name: as people call it: file name without ".toml".
        source: where it was read: a path, or "shipped:NAME".
        shipped: came with the package; all other documents come after it.
        rules: in order.
        lines: line of each rule in the file, from 1; empty where the document was not read from text.
        about: for people.
        digest: of the text, hex.
    """

    name: str
    source: str
    shipped: bool
    rules: tuple[Rule, ...]
    lines: tuple[int, ...] = ()
    about: str = ""
    digest: str = ""


class Origin(msgspec.Struct, frozen=True):
    """The rule that gave a value.

    Attributes:
        document: its name, or "default" where no rule set the value.
        index: of the rule in its document, from 0; -1 for a default.
        rule: its name.
        line: in the document, from 1; 0 where not known.
    """

    document: str
    index: int
    rule: str
    line: int = 0

    def __str__(self) -> str:
        return "default" if self.index < 0 else f"{self.document}/{self.rule}"


DEFAULT = Origin("default", -1, "")


class Decision(msgspec.Struct, frozen=True):
    """What holds for one access.

    Attributes:
        values: all of them.
        origins: by the name of the value: the rule that gave it, or `DEFAULT`.
        matched: every rule that matched, in order, also where a later one won.
    """

    values: Values
    origins: Mapping[str, Origin]
    matched: tuple[Origin, ...]


class RuleSet:
    """The rules of some documents in the order in which they apply, compiled.

    Attributes:
        documents: shipped ones first, otherwise in the order given: what an admin wrote beats what came with the package.
        rules, origins: all rules in order, and where each stands.
        defaults: what holds where no rule says otherwise.
        asks, asks_of_callers: the facts that some rule has a condition on, the others need not be found out; and those
            of them that are about who asks.
        pinning: indexes of the rules that pin to a snapshot; mostly there are none, and nobody has to ask.
    """

    __slots__ = (
        "_any_narrow",
        "_by_narrow",
        "_decisions",
        "_narrow",
        "_paths",
        "_personal",
        "_sizes",
        "asks",
        "asks_of_callers",
        "defaults",
        "documents",
        "origins",
        "pinning",
        "rules",
    )

    def __init__(self, documents: Iterable[Document], defaults: Values = DEFAULTS, breathe: Breathe = hold_breath) -> None:
        self.defaults = defaults
        self.documents = tuple(sorted(documents, key=lambda document: not document.shipped))
        self.rules: tuple[Rule, ...] = tuple(rule for document in self.documents for rule in document.rules)
        self.origins: tuple[Origin, ...] = tuple(_origins(self.documents))
        self.pinning = tuple(index for index, rule in enumerate(self.rules) if snapshot_of(rule.set))
        matches = [rule.match for rule in self.rules]
        self.asks = frozenset(name for match in matches for name in conditions_of(match))
        self.asks_of_callers = self.asks & OF_CALLERS
        self._personal = tuple(index for index, match in enumerate(matches) if OF_CALLERS & conditions_of(match).keys())
        self._narrow = [(1 << index, match) for index, match in enumerate(matches) if _is_narrow(match)]
        self._any_narrow = (1 << len(matches)) - 1 - sum(bit for bit, _ in self._narrow)
        self._paths = _PathIndex(matches, breathe)
        self._sizes = _SizeIndex([match.size for match in matches])
        self._by_narrow: dict[tuple[Any, ...], int] = {}
        self._decisions: dict[int, Decision] = {}

    def matching(self, facts: Facts) -> int:
        """Return the rules that match, as one bit each."""
        narrow = _narrow(facts)
        mask = self._by_narrow.get(narrow)
        if mask is None:
            mask = _remember(self._by_narrow, narrow, self._match_narrow(facts))
        return self._paths.select(facts.path, mask & self._sizes.select(facts.size))

    def for_anybody(self, facts: Facts, value: str) -> list[Any]:
        """Return all that a value may be for this access, whoever asks.

        Args:
            facts: without those of a caller.
        """
        matched = self.matching(facts)
        found = [getattr(self.decision(matched).values, value)]
        for index in reversed(self._personal):
            stated = getattr(self.rules[index].set, value)
            if stated is None or mismatch(self.rules[index].match, facts, _OF_ACCESSES) is not None:
                continue
            if any(getattr(self.rules[later].set, value) is not None for later in _bits(matched >> index << index)):
                break  # a rule for everybody has the last word over this one, and over those before it
            found.append(stated)
        return found

    def decision(self, matched: int) -> Decision:
        """Return what follows when exactly these rules match."""
        found = self._decisions.get(matched)
        return found or _remember(self._decisions, matched, _resolve(self, matched))

    def _match_narrow(self, facts: Facts) -> int:
        mask = self._any_narrow
        for bit, match in self._narrow:
            if mismatch(match, facts, NARROW) is None:
                mask |= bit
        return mask


def snapshot_of(settings: Settings) -> str:
    """Return the snapshot that a rule with these settings pins to, "" where it pins to none."""
    staleness: Staleness | None = settings_of(settings).get("staleness")
    return "" if staleness is None else staleness.snapshot


def decide(rules: RuleSet, facts: Facts) -> Decision:
    """Return the values that hold for this access and which rule gave each.

    Cost: 3 to 5 us with 200 rules (measured 2026-11); 0.2 ms where all of them begin and end with a wildcard, as "**/*x*",
        because each has then to be tried. No more memory than `REMEMBERED_MAX` decisions.
    """
    return rules.decision(rules.matching(facts))


class Verdict(msgspec.Struct, frozen=True):
    """Whether one rule matches, for people.

    Attributes:
        origin: the rule.
        mismatch: the first fact whose condition does not hold, or None: it matches.
        sets: the values that it sets.
        wins: the names of those that it has the last word on.
    """

    origin: Origin
    mismatch: str | None
    sets: Mapping[str, Any]
    wins: tuple[str, ...]


def explain(rules: RuleSet, facts: Facts) -> list[Verdict]:
    """Return what became of each rule, in order, tried one by one without any index."""
    decision = decide(rules, facts)
    verdicts = []
    for rule, origin in zip(rules.rules, rules.origins, strict=True):
        why_not = mismatch(rule.match, facts)
        wins = tuple(name for name, winner in decision.origins.items() if winner == origin)
        verdicts.append(Verdict(origin, why_not, settings_of(rule.set), wins))
    return verdicts


def _is_narrow(match: Match) -> bool:
    """Return whether a rule asks for one of the facts that take few values."""
    return any(condition is not None for condition in _narrow(match))


def _origins(documents: Iterable[Document]) -> Iterable[Origin]:
    for document in documents:
        for index, rule in enumerate(document.rules):
            line = document.lines[index] if document.lines else 0
            yield Origin(document.name, index, rule.name, line)


def _resolve(rules: RuleSet, matched: int) -> Decision:
    values: dict[str, Any] = {}
    origins = dict.fromkeys(VALUES, DEFAULT)
    indexes = list(_bits(matched))
    for index in indexes:
        settings = settings_of(rules.rules[index].set)
        values |= settings
        origins |= dict.fromkeys(settings, rules.origins[index])
    chosen = msgspec.structs.replace(rules.defaults, **values)
    return Decision(chosen, MappingProxyType(origins), tuple(rules.origins[index] for index in indexes))


def _remember(memory: dict[Any, Any], key: Any, value: Any) -> Any:
    if len(memory) >= REMEMBERED_MAX:
        memory.clear()
    memory[key] = value
    return value


def _bits(mask: int) -> Iterable[int]:
    """Yield the indexes of the bits that are set, lowest first."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


class _SizeIndex:
    """Which rules a size allows: one mask between every two bounds that any rule mentions."""

    __slots__ = ("_bounds", "_masks", "_unknown")

    def __init__(self, ranges: list[SizeRange | None]) -> None:
        stated = [found for found in ranges if found is not None]
        self._bounds = sorted({found.start for found in stated} | {found.end for found in stated if found.end is not None})
        self._unknown = sum(1 << index for index, found in enumerate(ranges) if found is None)
        inside = [-1, *self._bounds]  # one number of each interval; -1 lies below all of them
        self._masks = [
            self._unknown | sum(1 << i for i, found in enumerate(ranges) if found is not None and found.matches(number))
            for number in inside
        ]

    def select(self, size: int | None) -> int:
        if size is None:
            return self._unknown
        return self._masks[bisect.bisect_right(self._bounds, size)]


def _keys(marks: Landmarks) -> list[tuple[str, str]]:
    """Return the landmarks that a pattern may stand under, the cheapest to look up first."""
    found = [("prefix", marks.prefix), ("name", marks.name), *(("component", each) for each in marks.components)]
    return [(kind, key) for kind, key in [*found, ("extension", marks.extension)] if key]


class _PathIndex:
    """Which rules a path allows: candidates by what patterns have literally, then one regular expression each.

    A pattern stands under the one of its landmarks that the fewest patterns share: of 100 rules on "**/run7/*.pt" a path
    then tries one. Where the landmark is all that the pattern asks for, nothing has to be tried.

    Attributes:
        _free: rules without a path condition; `_anywhere`: rules to try on every path.
        _by_prefix, _by_name, _by_component, _by_extension: (rules that match, rules to try) where the path has this.
        _depth_max: components of the longest prefix.
        _fullmatch: per rule, compiled when first tried: 1,000 rules at once would hold up the caller for half a second.
    """

    __slots__ = (
        "_anywhere",
        "_by_component",
        "_by_extension",
        "_by_name",
        "_by_prefix",
        "_depth_max",
        "_free",
        "_fullmatch",
        "_regexes",
    )

    def __init__(self, matches: list[Match], breathe: Breathe) -> None:
        self._free = self._anywhere = 0
        self._by_prefix: dict[str, tuple[int, int]] = {}
        self._by_name: dict[str, tuple[int, int]] = {}
        self._by_component: dict[str, tuple[int, int]] = {}
        self._by_extension: dict[str, tuple[int, int]] = {}
        self._regexes = [match.path.regex if match.path else "" for match in matches]
        self._fullmatch: list[Callable[[str], object] | None] = [None] * len(matches)
        patterns = []
        for index, match in enumerate(matches):
            patterns += [(1 << index, landmarks(pattern)) for pattern in match.path or ()]
            breathe()
        shared = Counter(key for _, marks in patterns for key in _keys(marks))
        for index, match in enumerate(matches):
            self._free |= (match.path is None) << index
        for bit, marks in patterns:
            self._add(bit, marks, shared)
            breathe()
        self._depth_max = max((prefix.count("/") + 1 for prefix in self._by_prefix), default=0)

    def _add(self, bit: int, marks: Landmarks, shared: Mapping[tuple[str, str], int]) -> None:
        kind, key = min(_keys(marks), key=shared.__getitem__, default=("", ""))
        tables = {"prefix": self._by_prefix, "name": self._by_name, "component": self._by_component}
        if not kind:
            self._anywhere |= bit
            return
        table = tables.get(kind, self._by_extension)
        matching, to_try = table.get(key, (0, 0))
        table[key] = (matching | bit, to_try) if kind == marks.decisive else (matching, to_try | bit)

    def select(self, path: str, allowed: int) -> int:
        """Return those of the rules `allowed` that match the path or have no path condition."""
        matched, candidates = self._look_up(path)
        matched &= allowed
        candidates &= allowed & ~matched
        while candidates:
            lowest = candidates & -candidates
            candidates ^= lowest
            index = lowest.bit_length() - 1
            if (self._fullmatch[index] or self._compile(index))(path):
                matched |= lowest
        return matched

    def _look_up(self, path: str) -> tuple[int, int]:
        """Return the rules that match by a landmark or have no path condition, and those to try."""
        components = path.split("/")
        name = components[-1]
        found = [self._by_name.get(name), self._by_extension.get(name[name.rfind(".") + 1 :]) if "." in name else None]
        if self._by_component:
            found += map(self._by_component.get, components)
        prefix = ""
        for component in components[: self._depth_max]:
            prefix = f"{prefix}/{component}" if prefix else component
            found.append(self._by_prefix.get(prefix))
        matched, candidates = self._free, self._anywhere
        for each in found:
            if each is not None:
                matched |= each[0]
                candidates |= each[1]
        return matched, candidates

    def _compile(self, index: int) -> Callable[[str], object]:
        fullmatch: Callable[[str], object] = re.compile(self._regexes[index], re.DOTALL).fullmatch
        self._fullmatch[index] = fullmatch
        return fullmatch
