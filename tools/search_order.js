// The order of search results, read by the theme's own search: chapters come first, then the pages of the
// appendix, then names of the package. What a page's {index} names stays where it is: it is the answer.
const last = page => (page.startsWith("book/appendix/") ? 100 : 0) + (page.startsWith("book/appendix/api") ? 100 : 0);
var Scorer = {
  score: ([page, title, anchor, kind, score]) => score - (anchor.startsWith("#index-") ? 0 : last(page)),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
