// The order of search results, read by the theme's own search: chapters come first, then the pages of the
// appendix, then names of the package.
var Scorer = {
  score: ([page, title, anchor, kind, score]) =>
    score - (page.startsWith("book/appendix/") ? 100 : 0) - (page.startsWith("book/appendix/api") ? 100 : 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
