"""Citations as links in a notebook, as roles in the page, and back."""

import pytest

from tools import citations

DOI = "https://doi.org/10."
LEVIN = f"{DOI}1016/0040-5809%2876%2990043-5"  # parentheses would end a link
ARXIV = "https://arxiv.org/abs/"
KANEKO = "https://web.archive.org/web/19991124023203/http://village.infoweb.ne.jp:80/~fwhz9346/ed.htm"


@pytest.mark.parametrize(
    "role, link",
    [
        ("{cite:t}`kaneko1999` found", f'[Kaneko (1999)]({KANEKO} "cite:kaneko1999") found'),
        ("so {cite:p}`kaneko1999`.", f'so ([Kaneko, 1999]({KANEKO} "cite:kaneko1999")).'),
        ("{cite:t}`zhu2017`", f'[Zhu and Gupta (2017)]({ARXIV}1710.01878 "cite:zhu2017")'),
        ("{cite:t}`lecun1998`", f'[LeCun et al. (1998)]({DOI}1109/5.726791 "cite:lecun1998")'),
        ("{cite:t}`yamada2026`", f'[Yamada et al. (2026)]({ARXIV}2606.31700 "cite:yamada2026")'),
        ("{cite:t}`levin1976`", f'[Levin and May (1976)]({LEVIN} "cite:levin1976")'),
        ("{cite:t}`qiita2020day4`", '[Qiita (2020)](#References "cite:qiita2020day4")'),  # no address
    ],
)  # fmt: skip
def test_there_and_back(role, link):
    assert citations.as_links(role) == link
    assert citations.as_roles(link) == role
    assert citations.as_links(citations.as_roles(link)) == link


def test_several_works_in_one_pair_of_parentheses():
    role = "{cite:p}`appleyard2016,zhu2017`"
    link = citations.as_links(role)
    assert link.startswith(f"([Appleyard et al., 2016]({ARXIV}1604.01946") and "; [Zhu and" in link
    assert citations.as_roles(link) == role


def test_other_links_stay_as_they_are():
    text = "([a page](glossary.md), [another](https://example.org 'title'))"
    assert citations.as_roles(text) == citations.as_links(text) == text


def test_a_key_that_is_not_in_the_bibliography_is_an_error():
    with pytest.raises(KeyError):
        citations.as_links("{cite:t}`nobody1900`")
