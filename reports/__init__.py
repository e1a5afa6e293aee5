"""Reports on a run, drawn from its result alone: figures, one self-contained HTML page, Markdown, JUnit, SARIF."""
