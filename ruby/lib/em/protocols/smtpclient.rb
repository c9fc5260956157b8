# frozen_string_literal: true

module EventMachine
  module Protocols
    # Sends a mail: a deferrable that succeeds when the server has taken it.
    class SmtpClient < Connection
      include EventMachine::Deferrable
      include EventMachine::Protocols::LineText2

      # Options: host, port (25), domain, from, to (one or several), header (a hash), body, content (the whole mail, escaped),
      # starttls, auth (`{type: :plain, username:, password:}`), verbose.
      def self.send(args = {})
        EventMachine.connect(args[:host] || 'localhost', args[:port] || 25, self) { |client| client.args = args }
      end

      attr_writer :args

      def post_init
        @args ||= {}
        @succeeded = false
        @lines = []
        @expects = :greeted
      end

      def connection_completed
        self.comm_inactivity_timeout = 60
      end

      def receive_line(line)
        log('>>>', line)
        code, more = line[0, 3].to_i, line[3] == '-'
        @lines << line[4..].to_s
        return if more

        lines = @lines
        @lines = []
        __send__(@expects, code, lines)
      end

      def ssl_handshake_completed
        @args = @args.merge(starttls: false)
        greet
      end

      def unbind(reason = nil)
        super()
        return if @settled

        @settled = true
        if @succeeded
          succeed(self)
        else
          fail(code: 0, message: "the connection has ended#{": #{reason}" if reason}")
        end
      end

      private

      # A line that begins with a dot gets another one.
      def escape_leading_dots(text)
        text.gsub(/^\./, '..')
      end

      def command(text, expects)
        raise ArgumentError, 'a command of SMTP has no line breaks' if text.match?(/[\r\n]/)

        @expects = expects
        log('<<<', text)
        send_data("#{text}\r\n")
      end

      def log(direction, text)
        warn "#{direction} #{text}" if @args[:verbose]
      end

      def refused(code, lines)
        @settled = true
        fail(code: code, message: lines.join("\n"))
        close_connection
      end

      def greeted(code, lines)
        return refused(code, lines) unless code == 220

        greet
      end

      def greet
        command("EHLO #{@args[:domain] || 'localhost'}", :ehlo)
      end

      def ehlo(code, lines)
        return command("HELO #{@args[:domain] || 'localhost'}", :helo) if code != 250 && !@args[:starttls]
        return refused(code, lines) unless code == 250
        return command('STARTTLS', :starttls) if @args[:starttls]

        @args[:auth] ? authenticate : mail_from
      end

      def helo(code, lines)
        code == 250 ? mail_from : refused(code, lines)
      end

      def starttls(code, lines)
        code == 220 ? start_tls : refused(code, lines)
      end

      def authenticate
        auth = @args[:auth]
        raise ArgumentError, "unsupported authentication #{auth[:type].inspect}" unless (auth[:type] || :plain).to_sym == :plain

        command("AUTH PLAIN #{["\0#{auth[:username]}\0#{auth[:password]}"].pack('m0')}", :authenticated)
      end

      def authenticated(code, lines)
        code == 235 ? mail_from : refused(code, lines)
      end

      def mail_from
        @recipients = Array(@args[:to]).dup
        command("MAIL FROM: <#{@args[:from]}>", :sender_taken)
      end

      def sender_taken(code, lines)
        code == 250 ? next_recipient : refused(code, lines)
      end

      def next_recipient
        recipient = @recipients.shift
        recipient ? command("RCPT TO: <#{recipient}>", :recipient_taken) : command('DATA', :data_wanted)
      end

      def recipient_taken(code, lines)
        [250, 251].include?(code) ? next_recipient : refused(code, lines)
      end

      def data_wanted(code, lines)
        return refused(code, lines) unless code == 354

        @expects = :mail_taken
        if @args[:content]
          send_data(Array(@args[:content]).join)
        else
          send_mail
        end
      end

      def send_mail
        header = @args[:header] || {}
        lines = header.flat_map { |name, value| Array(value).map { |each| "#{name}: #{each}" } }
        raise ArgumentError, 'a header line has no line breaks' if lines.any? { |line| line.match?(/[\r\n]/) }

        body = Array(@args[:body]).join("\r\n")
        send_data("#{(lines + ['']).join("\r\n")}\r\n#{escape_leading_dots(body)}")
        send_data(body.end_with?("\r\n") ? ".\r\n" : "\r\n.\r\n")
      end

      def mail_taken(code, lines)
        return refused(code, lines) unless code == 250

        @succeeded = true
        command('QUIT', :quit)
      end

      def quit(_code, _lines)
        @settled = true
        succeed(self)
        close_connection
      end
    end
  end
end
