"""Networks compiled for another machine: made where there is a compiler, run where there is TVM's runtime alone."""
