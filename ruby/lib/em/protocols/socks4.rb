# frozen_string_literal: true

module EventMachine
  module Protocols
    # Connects through a SOCKS 4 proxy. Derive from it: `post_init` is called when the proxy has connected to the target.
    #
    #   class Client < EM::P::Socks4
    #     def post_init
    #       send_data 'hello'
    #     end
    #   end
    #
    #   EM.connect(proxy_host, proxy_port, Client, 'example.org', 80)
    #
    # The proxy looks names up (SOCKS 4a). If it refuses, the connection is closed, and `socks_error` says why.
    class Socks4 < Connection
      VERSION = 4
      CONNECT = 1
      GRANTED = 90
      REPLY_SIZE = 8
      ERRORS = {
        91 => 'the proxy refused the connection, or it failed',
        92 => 'the proxy cannot reach an identd on this machine',
        93 => 'the identd on this machine reports a different user'
      }.freeze

      # Why the proxy refused, or nil.
      attr_reader :socks_error

      # Comes before the program's methods until the proxy has answered.
      module Handshake
        def post_init
          super if @socks_granted
        end

        def connection_completed
          @socks_granted ? super : send_data(@socks_request)
        end

        def receive_data(data)
          return super if @socks_granted

          @socks_reply << data
          return if @socks_reply.bytesize < REPLY_SIZE

          status = @socks_reply.getbyte(1)
          unless @socks_reply.getbyte(0).zero? && status == GRANTED
            @socks_error = ERRORS.fetch(status, "the proxy has answered with #{status}")
            return close_connection
          end
          rest = @socks_reply.byteslice(REPLY_SIZE..)
          @socks_granted = true
          post_init
          receive_data(rest) unless rest.empty?
        end
      end

      def initialize(_host, _port)
        super()
      end

      def begin_connection(signature, args)
        @socks_request = self.class.request(*args.first(2))
        @socks_reply = String.new
        @socks_granted = false
        extend Handshake
        super
      end

      # Returns the request to connect to a host.
      def self.request(host, port)
        host = host.to_s
        port = Integer(port)
        raise ArgumentError, "no port: #{port}" unless (0..65_535).cover?(port)
        raise ArgumentError, "no host: #{host.inspect}" if host.empty? || host.include?("\0")

        address = host.match?(/\A\d{1,3}(\.\d{1,3}){3}\z/) ? host.split('.').map(&:to_i) : nil
        raise ArgumentError, "no address: #{host}" if address&.any? { |part| part > 255 }

        # An address that cannot exist says that a name follows the name of the user, which is empty.
        [VERSION, CONNECT, port, *(address || [0, 0, 0, 1])].pack('CCnC4') << "\0" << (address ? '' : "#{host}\0")
      end
    end
  end
end
