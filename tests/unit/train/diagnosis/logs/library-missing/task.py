import os

import subprocess

with open("ext.c", "w") as source:
    source.write("int libcv(void); int PyInit_fastio(void) { return libcv(); }")
with open("cv.c", "w") as source:
    source.write("int libcv(void) { return 0; }")
subprocess.run(["cc", "-shared", "-fPIC", "-o", "libGLx.so.1", "cv.c"], check=True)
subprocess.run(["cc", "-shared", "-fPIC", "-o", "fastio.so", "ext.c", "-L.", "-l:libGLx.so.1"], check=True)
os.remove("libGLx.so.1")
import fastio
