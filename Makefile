# The commands of the README. Each sets up .venv first, once; a change of the requirements sets it up again.

# The first Python that is new enough. Another one: make book PYTHON=/path/to/python
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
PY := .venv/bin/python
# Chapters run in their own folders, so a relative ED_DATA is made absolute here.
export ED_DATA := $(if $(ED_DATA),$(shell cd "$(ED_DATA)" 2>/dev/null && pwd || echo "$(ED_DATA)"))
export PIP_DISABLE_PIP_VERSION_CHECK := 1
QUIET := $(shell [ -t 2 ] || echo --quiet)
NEEDS := $(if $(filter Linux,$(shell uname)),9,4)

# Test processes with two threads each, on two cores, would wait for each other most of the time; and what has
# two threads all the same is not to spin while it waits. Three processes, since some tests only wait.
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE

.DEFAULT_GOAL := help
NBVAL := --nbval-lax --nbval-current-env --nbval-cell-timeout=600
COLAB := _build/colab
COLAB_PYTHON := $(firstword $(wildcard $(HOME)/.pyenv/versions/3.13*/bin/python) python3.13)

.PHONY: help setup book test colab elsewhere gpu records status sentences chapter outputs lint repository clean

help:  ## list the targets
	@grep -E '^[a-z]+:.*## ' Makefile | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 20

book: setup  ## execute every chapter on this machine and render the book (_build/html)
	@$(PY) -m tools.book $(BOOK)

ifdef CHAPTER
test: setup
	CHAPTER=$(CHAPTER) $(ONE_THREAD) $(PY) -m pytest $(NBVAL) tests/test_notebooks.py tests/test_exercises.py $(CHAPTER)
else
test: setup  ## run the unit tests, the notebooks (nbval) and the tests of the rendered pages, in three processes (CHAPTER=book/…: one chapter's)
	@$(PY) -m tools.book --render-only
	@$(PY) -m tools.browser
	$(ONE_THREAD) $(PY) -m pytest -n 3 --dist loadfile --no-loadscope-reorder $(if $(SLOW),-m "slow or not slow") \
		$(NBVAL) tests book
endif

colab: $(COLAB)/ready  ## execute every chapter in Colab's versions, as Colab would (CHAPTER=many_steps: that one); needs Python 3.13
	@rm -rf $(COLAB)/content && mkdir $(COLAB)/content
	@for chapter in book/*/$(or $(CHAPTER),*).ipynb; do \
		if grep -q '"draft": true' $$chapter && ! grep -q "$${chapter%.ipynb}$$" _toc.yml; then continue; fi; \
		sed -e 's|REPOSITORY = \\"[^\\]*|REPOSITORY = \\"file://$(CURDIR)|' \
			-e 's|VERSION = \\"[^\\]*|VERSION = \\"$(shell git rev-parse HEAD)|' \
			$$chapter > $(COLAB)/content/$$(basename $$chapter); done
	@$(COLAB)/env/bin/python -m pip uninstall --quiet --yes ed_lib 2> /dev/null
	@$(COLAB)/env/bin/python -m pip freeze > $(COLAB)/before
	@cp tools/usage_errors.py $(COLAB)/content/conftest.py
	@cd $(COLAB)/content && PATH="$(CURDIR)/$(COLAB)/env/bin:$$PATH" PYTHONPATH= python -m pytest -p no:cacheprovider \
		--confcutdir=. --rootdir=. $(NBVAL) .
	@$(COLAB)/env/bin/python -m pip freeze | grep -v "^ed_lib" | diff $(COLAB)/before - || \
		{ echo "Installing ed_lib has moved a package that Colab holds."; exit 1; }

$(COLAB)/ready: constraints-colab.txt
	@echo "Setting up Colab's versions in $(COLAB), once: about 6 GB, a few minutes."
	$(COLAB_PYTHON) -m venv --clear $(COLAB)/env
	$(COLAB)/env/bin/python -m pip install $(QUIET) -r constraints-colab.txt
	@touch $@

elsewhere: setup  ## execute the chapters as other processors do, and list the claims that fail (CHAPTER=book/... WAY="avx2 one-thread")
	@$(PY) -m tools.elsewhere $(CHAPTER) $(if $(WAY),--way $(WAY))

gpu:  ## on a machine with a GPU: the tests marked gpu, then its records (NAME=lstm ONLY=ladder: that table)
	@PY="$(PYTHON)"; [ -x $(PY) ] && [ "$(origin PYTHON)" = file ] && PY=$(PY); \
	$$PY -c 'import sys, torch; torch.cuda.is_available() or sys.exit("make gpu needs a GPU, and PyTorch sees none here.")' || exit 1; \
	[ -n "$(ONLY)" ] || $$PY -m pytest -q -m gpu tests/ed tests/lstm tests/precision tests/test_timing.py; \
	$$PY -m benchmarks $(NAME) --device cuda $(if $(ONLY),--only $(ONLY))

records: setup  ## measure this machine (NAME=lstm: that alone), write records/ and the front page
	@$(PY) -m benchmarks $(NAME)
	@$(PY) -m tools.front

status: setup  ## list the chapters and records whose code has changed since they were made (FILE=ed_lib/…: those that a file reaches)
	@$(PY) -m tools.status $(FILE)

sentences: setup  ## list the sentences with a number or a comparison that no claim of their chapter covers (CHAPTER=book/…: one chapter's)
	@$(PY) -m tools.uncovered $(CHAPTER)

chapter: setup  ## begin a chapter (NAME=parallel/my_question): a draft, executed, that _toc.yml takes into the book
	@$(PY) -m tools.new_chapter "$(NAME)"

outputs: setup  ## execute the chapters, write their outputs into book/ and the list of them into index.md
	@$(PY) -m tools.notebooks $(CHAPTER)
	@$(PY) -m tools.front

lint: setup  ## check the style of the code (ruff) and its types (mypy)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

mutants: setup  ## make small mistakes in a module, and list those that its tests miss (MODULE=ed/costs TESTS="more files" N=50 SEED=0)
	@$(ONE_THREAD) $(PY) -m tools.mutants $(MODULE) $(TESTS) --number $(or $(N),50) --seed $(or $(SEED),0)

repository: setup  ## write the book's address (URL=https://...) everywhere
	@$(PY) -m tools.repository "$(URL)"
	@$(PY) -m tools.front

clean:  ## remove what was built, but not .venv
	rm -rf _build

setup: .venv/ready  ## set up .venv, once; the other targets do it by themselves
.venv/ready: requirements.txt constraints.txt pyproject.toml setup.py
	@[ ! -L .venv ] || { echo "Setting up .venv would empty the folder that it is a link to, $$(readlink .venv). Remove the link (rm .venv), or, if what is there will do: touch .venv/ready"; exit 1; }
	@test -n "$(PYTHON)" || { echo "This needs Python 3.11 or newer, and none was found. Install one, or name it: make PYTHON=/path/to/python"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "This needs Python 3.11 or newer; $(PYTHON) is older, or does not run."; exit 1; }
	@free=$$(df -Pk . | awk 'NR == 2 {print int($$4 / 1000000)}'); [ "$$free" -ge $(NEEDS) ] || \
		{ echo "Setting up needs $(NEEDS) GB of free disk here (PyTorch and CuPy bring CUDA), and $$free GB are left."; exit 1; }
	@echo "Setting up .venv, once: about 7 GB on Linux (PyTorch and CuPy bring CUDA), a few minutes."
	$(PYTHON) -m venv --clear .venv
	$(PY) -m pip install --quiet --upgrade pip
	$(PY) -m pip install $(QUIET) -r requirements.txt -c constraints.txt
	$(PY) -m pip install $(QUIET) --no-deps --group d2l
	@touch $@
