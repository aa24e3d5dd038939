from absl import app, flags
F = flags.FLAGS
flags.DEFINE_integer("task_index", None, "i")
flags.DEFINE_string("job_name", None, "j")
flags.DEFINE_string("ps_hosts", "", "p")
flags.mark_flags_as_required(["task_index", "job_name"])
def main(_):
    print("SEEN", F.task_index, F.job_name, repr(F.ps_hosts))
app.run(main)
