"""Results to look at: one self-contained HTML page, tables and figures for papers."""

from fedtail.report.content import make_content
from fedtail.report.document import make_page, write_report
from fedtail.report.features import FeatureView, feature_view, first_finished
from fedtail.report.figures import write_figures
from fedtail.report.serve import make_server
from fedtail.report.tables import features_csv, norms_csv
from fedtail.study.lines import Line, make_lines
from fedtail.study.runs import Run, read_run, read_runs
from fedtail.study.tables import as_csv, as_latex

__all__ = [
    "FeatureView",
    "Line",
    "Run",
    "as_csv",
    "as_latex",
    "feature_view",
    "features_csv",
    "first_finished",
    "make_content",
    "make_lines",
    "make_page",
    "make_server",
    "norms_csv",
    "read_run",
    "read_runs",
    "write_figures",
    "write_report",
]
