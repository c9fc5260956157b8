// The actor thread pool of textbooks: an action for an idle actor is submitted to a fixed number of threads; actions for a busy
// actor wait in its queue until the current one is done. The actor's own lock guards its queue and its state.
//
// On standard input, one line per run: "outside SENDERS EACH" or "ring APART HOPS". On standard output, one line for each:
// nanoseconds, nanoseconds of processor time, and the sum that the actors report.

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.util.ArrayDeque;
import java.util.Map;
import java.util.Queue;
import java.util.Set;
import java.util.WeakHashMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.ReadWriteLock;
import java.util.concurrent.locks.ReentrantReadWriteLock;

public final class Actors {
    /** Runs the actions of each actor one after the other, and those of different actors in parallel. */
    static final class Pool<A> {
        private final ExecutorService threads;
        private final Set<A> playing = ConcurrentHashMap.newKeySet();
        /** The queue of each actor. Weak keys, so that the queue of an unreachable actor is freed. */
        private final Map<A, Queue<Runnable>> waiting = new WeakHashMap<>();
        private final ReadWriteLock waitingLock = new ReentrantReadWriteLock();

        Pool(int workers) {
            threads = Executors.newFixedThreadPool(workers);
        }

        void submit(A actor, Runnable action) {
            synchronized (actor) {
                if (playing.add(actor)) {
                    play(actor, action);
                } else {
                    queueOf(actor).add(action);
                }
            }
        }

        void end() {
            threads.shutdownNow();
        }

        private void play(A actor, Runnable action) {
            threads.execute(() -> {
                try {
                    action.run();
                } finally {
                    goOn(actor);
                }
            });
        }

        private void goOn(A actor) {
            synchronized (actor) {
                Runnable next = queueOf(actor).poll();
                if (next == null) {
                    playing.remove(actor);
                } else {
                    play(actor, next);
                }
            }
        }

        private Queue<Runnable> queueOf(A actor) {
            waitingLock.readLock().lock();
            Queue<Runnable> queue;
            try {
                queue = waiting.get(actor);
            } finally {
                waitingLock.readLock().unlock();
            }
            if (queue != null) {
                return queue;
            }
            waitingLock.writeLock().lock();
            try {
                return waiting.computeIfAbsent(actor, unknown -> new ArrayDeque<>());
            } finally {
                waitingLock.writeLock().unlock();
            }
        }
    }

    /** What one actor does. */
    static final class Member {
        private final Pool<Member> pool;
        private final AtomicLong total;
        private final CountDownLatch over;
        private long left;
        private long sum;
        private Member next;

        Member(Pool<Member> pool, AtomicLong total, CountDownLatch over, long left) {
            this.pool = pool;
            this.total = total;
            this.over = over;
            this.left = left;
        }

        void send(long number) {
            pool.submit(this, () -> receive(number));
        }

        void pass(long number) {
            pool.submit(this, () -> receiveAndPass(number));
        }

        private void receive(long number) {
            sum += number;
            left -= 1;
            if (left == 0) {
                total.addAndGet(sum);
                over.countDown();
            }
        }

        private void receiveAndPass(long number) {
            if (number == 0) {
                total.incrementAndGet();
                over.countDown();
            } else {
                next.pass(number - 1);
            }
        }
    }

    private final int actors;
    private final int workers;

    private Actors(int actors, int workers) {
        this.actors = actors;
        this.workers = workers;
    }

    private String outside(int senders, long each) throws InterruptedException {
        CountDownLatch over = new CountDownLatch(actors);
        CountDownLatch gate = new CountDownLatch(1);
        return run(over, each * senders, (members) -> {
            for (int sender = 0; sender < senders; sender++) {
                Thread thread = new Thread(() -> {
                    try {
                        gate.await();
                    } catch (InterruptedException interrupted) {
                        return;
                    }
                    for (long number = 0; number < each; number++) {
                        for (Member member : members) {
                            member.send(number);
                        }
                    }
                });
                thread.start();
            }
        }, (members) -> gate.countDown());
    }

    private String ring(int apart, long hops) throws InterruptedException {
        CountDownLatch over = new CountDownLatch((actors + apart - 1) / apart);
        return run(over, 0, (members) -> {}, (members) -> {
            for (int index = 0; index < actors; index += apart) {
                members[index].pass(hops - 1);
            }
        });
    }

    private interface Step {
        void take(Member[] members);
    }

    private String run(CountDownLatch over, long left, Step before, Step begin) throws InterruptedException {
        Pool<Member> pool = new Pool<>(workers);
        AtomicLong total = new AtomicLong();
        Member[] members = new Member[actors];
        for (int index = 0; index < actors; index++) {
            members[index] = new Member(pool, total, over, left);
        }
        for (int index = 0; index < actors; index++) {
            members[index].next = members[(index + 1) % actors];
        }
        before.take(members);
        long cpu = processorTime();
        long wall = System.nanoTime();
        begin.take(members);
        over.await();
        wall = System.nanoTime() - wall;
        cpu = processorTime() - cpu;
        pool.end();
        return wall + " " + cpu + " " + total.get();
    }

    private static long processorTime() {
        var system = ManagementFactory.getPlatformMXBean(com.sun.management.OperatingSystemMXBean.class);
        return system.getProcessCpuTime();
    }

    public static void main(String[] arguments) throws IOException, InterruptedException {
        Actors actors = new Actors(Integer.parseInt(arguments[0]), Integer.parseInt(arguments[1]));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            int first = Integer.parseInt(words[1]);
            long second = Long.parseLong(words[2]);
            System.out.println(words[0].equals("ring") ? actors.ring(first, second) : actors.outside(first, second));
        }
    }
}
