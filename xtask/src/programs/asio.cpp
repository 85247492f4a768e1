// Boost.Asio: `asio serve PORT` echoes, and `asio call PORT` sends data over many connections at once and compares what
// comes back. Both have two threads on one event loop, which waits by edge-triggered epoll.

#include <boost/asio.hpp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr int connections = 20;
constexpr std::size_t total_bytes = 1 << 20;

struct session : std::enable_shared_from_this<session> {
    tcp::socket socket;
    std::vector<char> buffer = std::vector<char>(16384);

    explicit session(tcp::socket accepted) : socket(std::move(accepted)) {}

    void read() {
        socket.async_read_some(asio::buffer(buffer), [self = shared_from_this()](error_code error, std::size_t length) {
            if (!error) {
                self->write(length);
            }
        });
    }

    void write(std::size_t length) {
        auto done = [self = shared_from_this()](error_code error, std::size_t) {
            if (!error) {
                self->read();
            }
        };
        asio::async_write(socket, asio::buffer(buffer, length), done);
    }
};

void accept(tcp::acceptor &acceptor) {
    acceptor.async_accept([&acceptor](error_code error, tcp::socket socket) {
        if (!error) {
            std::make_shared<session>(std::move(socket))->read();
        }
        accept(acceptor);
    });
}

struct caller {
    tcp::socket socket;
    asio::steady_timer deadline;
    std::vector<char> sent, received;
    bool is_right = false;

    caller(asio::io_context &loop, std::uint32_t seed)
        : socket(loop), deadline(loop), sent(total_bytes), received(total_bytes) {
        for (char &byte : sent) {
            seed = seed * 1664525 + 1013904223;
            byte = static_cast<char>(seed >> 24);
        }
    }

    void start(const tcp::endpoint &server) {
        deadline.expires_after(std::chrono::seconds(60));
        deadline.async_wait([](error_code error) {
            if (!error) {
                std::fprintf(stderr, "no answer in time\n");
                std::exit(1);
            }
        });
        socket.async_connect(server, [this](error_code error) {
            if (error) {
                std::fprintf(stderr, "connect: %s\n", error.message().c_str());
                return;
            }
            asio::async_write(socket, asio::buffer(sent), [](error_code, std::size_t) {});
            asio::async_read(socket, asio::buffer(received), [this](error_code error, std::size_t) {
                is_right = !error && sent == received;
                deadline.cancel();
            });
        });
    }
};

void run(asio::io_context &loop) {
    std::thread second([&loop] { loop.run(); });
    loop.run();
    second.join();
}

int main(int count, char **arguments) {
    if (count != 3) {
        return 2;
    }
    asio::io_context loop;
    const tcp::endpoint server(asio::ip::address_v4::loopback(), static_cast<std::uint16_t>(std::atoi(arguments[2])));
    if (arguments[1] == std::string("serve")) {
        tcp::acceptor acceptor(loop, server);
        accept(acceptor);
        run(loop);
        return 0;
    }
    std::vector<std::unique_ptr<caller>> callers;
    for (int number = 0; number < connections; number++) {
        callers.push_back(std::make_unique<caller>(loop, number + 1));
        callers.back()->start(server);
    }
    run(loop);
    for (const auto &each : callers) {
        if (!each->is_right) {
            std::puts("the data are wrong");
            return 1;
        }
    }
    std::puts("the data are right");
}
