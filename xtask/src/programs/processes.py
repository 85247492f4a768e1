"""Processes of Python's multiprocessing, forked off a process that has the device open: pyverbs in each.

    processes.py DEVICE GID_INDEX

The first process keeps its device. Each pair of children opens the device, connects two queue pairs, and compares messages. A
child of each child does the same.
"""

import multiprocessing
import sys

from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.enums import IBV_ACCESS_LOCAL_WRITE, IBV_QPT_RC, IBV_WC_SUCCESS, IBV_WR_SEND
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

DEVICE, GID_INDEX = sys.argv[1], int(sys.argv[2])
PAIRS = 3
MESSAGES = 50
LENGTH = 1000
PATIENCE_S = 60
# Children are forked and inherit everything that the first process has open.
forking = multiprocessing.get_context("fork")


class End:
    """A device that is open, and a queue pair."""

    def __init__(self):
        self.context = Context(name=DEVICE)
        self.pd = PD(self.context)
        self.cq = CQ(self.context, 10)
        self.mr = MR(self.pd, LENGTH, IBV_ACCESS_LOCAL_WRITE)
        cap = QPCap(max_send_wr=2, max_recv_wr=2, max_send_sge=1, max_recv_sge=1)
        init = QPInitAttr(qp_type=IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=1)
        self.qp = QP(self.pd, init)

    def address(self):
        return self.qp.qp_num, self.context.query_gid(1, GID_INDEX).gid

    def connect(self, peer):
        number, gid = peer
        route = GlobalRoute(dgid=GID(gid), sgid_index=GID_INDEX)
        attr = QPAttr(port_num=1)
        attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=route)
        attr.dest_qp_num = number
        attr.path_mtu = 3
        attr.timeout, attr.retry_cnt, attr.rnr_retry = 14, 7, 7
        attr.min_rnr_timer = 12
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
        self.qp.to_rts(attr)

    def receive(self):
        self.qp.post_recv(RecvWR(num_sge=1, sg=[SGE(self.mr.buf, LENGTH, self.mr.lkey)]))

    def send(self, data):
        self.mr.write(data, LENGTH)
        request = SendWR(num_sge=1, sg=[SGE(self.mr.buf, LENGTH, self.mr.lkey)], opcode=IBV_WR_SEND)
        self.qp.post_send(request)

    def complete(self):
        while True:
            count, completions = self.cq.poll()
            if count:
                assert completions[0].status == IBV_WC_SUCCESS, completions[0]
                return


def message(number):
    return "".join(chr(ord("a") + (number + at) % 26) for at in range(LENGTH))


def talk(pipe, is_first, has_child):
    """One end of a pair; then a child of this child is one."""
    end = End()
    pipe.send(end.address())
    end.connect(pipe.recv())
    if not is_first:
        end.receive()
    pipe.send("ready")
    assert pipe.recv() == "ready"
    for number in range(MESSAGES):
        if is_first:
            end.send(message(number))
            end.complete()
        else:
            end.complete()
            received = end.mr.read(LENGTH, 0).decode()
            assert received == message(number), received
            if number + 1 < MESSAGES:
                end.receive()
        pipe.send(number)
        assert pipe.recv() == number
    if has_child:
        run(forking.Process(target=talk, args=(pipe, is_first, False)))
    # The device must still work after the child's exit.
    CQ(end.context, 1)


def run(*processes):
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENCE_S)
        assert process.exitcode == 0, process.exitcode


def main():
    own = End()
    for _ in range(PAIRS):
        one, other = forking.Pipe()
        run(
            forking.Process(target=talk, args=(one, True, True)),
            forking.Process(target=talk, args=(other, False, True)),
        )
        CQ(own.context, 1)
    print(f"{PAIRS} pairs of children: right")


main()
