"""An engine for sweeps that works in this process, for tests of what a sweep does and not of where."""

from abcnb.study.engines import Ended


class InlineEngine:
    """One job at a time, done as soon as it is started."""

    slots = 1

    def __init__(self):
        self.over: list[Ended] = []

    def start(self, job):
        try:
            self.over.append(Ended(job, job.work()))
        except Exception as error:
            self.over.append(Ended(job, None, str(error)))

    def ended(self, seconds):
        over, self.over = self.over, []
        return over

    def stop(self):
        pass
